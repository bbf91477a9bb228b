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
    """

    file: Path
    folder: Path
    model: torch.nn.Module
    inputs: Any
    argument: str


Step = Callable[[StepContext], dict[str, Any]]


def run_step(step: str, folder: Path, file_name: str, model: torch.nn.Module, inputs: Any) -> dict[str, Any]:
    """Run a step. An error of this package in it is a finding: the exported file is there all the same.

    Returns:
        Whether it ``passed``, and what it found.
    """
    kind, _, argument = step.partition(":")
    context = StepContext(folder / file_name, folder, model, inputs, argument)
    try:
        return STEP_FUNCTIONS[kind](context)
    except ModelExportError as error:
        return {"passed": False, "error": type(error).__name__, "message": in_one_line(error)}


def _verify(context: StepContext) -> dict[str, Any]:
    from modelexport.verification import verify_modules

    report = verify_modules(context.file, context.model, context.inputs)
    _write(context.folder / "verify.json", report.as_dict())
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
    _write(context.folder / "profile.json", {**report.as_dict(), "file": context.file.name})
    return {"passed": True, "seconds": report.session.median}


def _extract(context: StepContext) -> dict[str, Any]:
    from modelexport.analysis.extraction import extract_modules

    # A job may extract by several selectors.
    folder = context.folder / "extracted" / re.sub(r"[^A-Za-z0-9._]+", "-", context.argument).strip("-.")
    report = extract_modules(context.file, context.argument, folder)
    return {"passed": True, "extracted": len(report.submodels), "refused": len(report.refused)}


STEP_FUNCTIONS: Mapping[str, Step] = {
    "verify": _verify,
    "validate": _validate,
    "profile": _profile,
    "extract": _extract,
}


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
