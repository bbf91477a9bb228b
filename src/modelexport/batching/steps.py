"""What is done with an exported file afterwards: each step has a name, writes a report, and passes or not."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelexport.display import in_one_line
from modelexport.errors import ModelExportError

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True)
class StepContext:
    """What a step works with.

    Attributes:
        file: The exported file.
        folder: The folder of the job, which its reports go to.
        model: The PyTorch model.
        inputs: The example inputs.
        argument: What follows the colon of the step: ``extract:SELECTOR``.
        private: Whether source lines are left out.
    """

    file: Path
    folder: Path
    model: torch.nn.Module
    inputs: Any
    argument: str = ""
    private: bool = False


_VERIFICATION = "verify.json"
_PROFILE = "profile.json"

Step = Callable[[StepContext], dict[str, Any]]


def run_step(step: str, context: StepContext) -> dict[str, Any]:
    """Run a step. An error of this package in it is a finding: the exported file is there all the same.

    Returns:
        Whether it ``passed``, and what it found.
    """
    kind, _, argument = step.partition(":")
    try:
        return STEP_FUNCTIONS[kind](dataclasses.replace(context, argument=argument))
    except ModelExportError as error:
        return {"passed": False, "error": type(error).__name__, "message": in_one_line(error)}


def _verify(context: StepContext) -> dict[str, Any]:
    from modelexport.verification import verify_modules

    report = verify_modules(context.file, context.model, context.inputs)
    names = {"file": context.file.name, "model": type(context.model).__name__}
    _write(context.folder / _VERIFICATION, {**report.as_dict(), **names})
    judged = [call.judged for call in report.calls if call.judged is not None]
    return {
        "passed": report.passed,
        "verdicts": report.counts,
        "worst_excess": max((difference.excess for difference in judged), default=None),
        "findings": [call.call for call in report.findings[:20]],
        "whole_run_error": report.whole_run_error,
    }


def _validate(context: StepContext) -> dict[str, Any]:
    from modelexport.analysis.validation import validate

    report = validate(context.file)
    content = {**report.as_dict(), "path": context.file.name}
    _write(context.folder / "validate.json", content)
    return {"passed": report.is_valid, "errors": report.errors, "findings": len(report.findings)}


def _profile(context: StepContext) -> dict[str, Any]:
    from modelexport.profiling import profile

    report = profile(context.file)
    _write(context.folder / _PROFILE, {**report.as_dict(), "file": context.file.name})
    return {"passed": True, "seconds": report.session.median}


def _extract(context: StepContext) -> dict[str, Any]:
    from modelexport.analysis.extraction import extract_modules

    # A job may extract by several selectors.
    folder = context.folder / "extracted" / re.sub(r"[^A-Za-z0-9._]+", "-", context.argument).strip("-.")
    report = extract_modules(context.file, context.argument, folder)
    return {"passed": True, "extracted": len(report.submodels), "refused": len(report.refused)}


def _view(context: StepContext) -> dict[str, Any]:
    from modelexport.viewing import view

    verification, profile = context.folder / _VERIFICATION, context.folder / _PROFILE
    view(
        context.file,
        output=context.folder / "view.html",
        private=context.private,
        verification=verification if verification.is_file() else None,
        profile=profile if profile.is_file() else None,
    )
    return {"passed": True}


STEP_FUNCTIONS: Mapping[str, Step] = {
    "verify": _verify,
    "validate": _validate,
    "profile": _profile,
    "extract": _extract,
    "view": _view,
}


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
