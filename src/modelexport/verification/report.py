"""What a verification found: a record for each module call, the worst first."""

from __future__ import annotations

import enum
import math
from collections import Counter
from typing import Any

import msgspec

from modelexport.display import Summary, summarized
from modelexport.hierarchy import json_schema, or_null
from modelexport.verification.difference import Difference

_SHOWN = 10


class Verdict(enum.StrEnum):
    """What became of a call; the worst first."""

    INTRODUCED = "introduced"
    FAILED = "failed"
    UNDECIDED = "undecided"
    INSIDE = "inside"
    INHERITED = "inherited"
    REORDERED = "reordered"
    WITHIN = "within"
    NOT_COMPARABLE = "not_comparable"


# What lets a verification fail.
_FINDINGS = (Verdict.INTRODUCED, Verdict.FAILED, Verdict.UNDECIDED, Verdict.INSIDE, Verdict.INHERITED)
# What is judged by what the call does alone, and not by the whole run.
_OWN = (Verdict.INTRODUCED, Verdict.INSIDE, Verdict.WITHIN)
_ORDER = {verdict: place for place, verdict in enumerate(Verdict)}


class TensorVerification(msgspec.Struct, frozen=True, omit_defaults=True):
    """One result of a call.

    Attributes:
        name: The result's field.
        tensor: The tensor of the graph that holds it.
        dtype: Its element type in PyTorch.
        introduced: The module as ONNX model, given PyTorch's inputs, against PyTorch's result.
        inherited: The whole ONNX run against the module as ONNX model, given PyTorch's inputs.
        total: The whole ONNX run against PyTorch's result.
    """

    name: str
    tensor: str | None
    dtype: str
    introduced: Difference | None = None
    inherited: Difference | None = None
    total: Difference | None = None


class CallVerification(msgspec.Struct, frozen=True, omit_defaults=True):
    """One module call; its differences are those of its worst result.

    Attributes:
        call: The call.
        tag: Its tag.
        class_name: The class of its module.
        verdict: ``introduced``: it makes an error of its inputs as PyTorch had them, and no call inside of it does.
            ``inside``: it does, because a call inside of it does. ``inherited``: it makes none, and yet its results in
            the whole ONNX run are out of tolerance. ``undecided``: they are, and it cannot be run alone. ``failed``:
            onnxruntime could not run it alone. ``reordered``: its results are the same numbers in another order, and
            the calls around give the same with either. ``within``: all is within tolerance. ``not_comparable``: it
            cannot be run alone, and nothing is known against it.
        introduced: The error it makes, given the inputs that PyTorch had.
        inherited: What the errors of its inputs in the whole ONNX run do to its results.
        total: The error of its results in the whole ONNX run.
        reason: Why it could not be run alone: ``fused``, ``no_operation``, ``unknown_boundary``, ``not_run`` (PyTorch's
            run did not show this call), ``failed``, ``no_result`` (nothing of what it returned is in the graph), or
            ``random`` (PyTorch's own results are others from another random state).
        explanation: The same in words.
        source: For ``inside``, the worst of the calls inside that introduce an error.
        fused_with: The calls it is fused with.
        tensors: Its results.
        notes: What else is to be known.
    """

    call: str
    tag: str
    class_name: str
    verdict: Verdict
    introduced: Difference | None = None
    inherited: Difference | None = None
    total: Difference | None = None
    reason: str = ""
    explanation: str = ""
    source: str | None = None
    fused_with: tuple[str, ...] = ()
    tensors: tuple[TensorVerification, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def judged(self) -> Difference | None:
        """The difference that its verdict is about."""
        if self.verdict is Verdict.REORDERED:
            return self.introduced if self.introduced is not None and self.introduced.is_out else self.total
        return self.introduced if self.verdict in _OWN else self.total

    @property
    def is_finding(self) -> bool:
        """Whether it lets the verification fail."""
        return self.verdict in _FINDINGS


def _summary(report: VerificationReport) -> Summary:
    counts = ", ".join(f"{count} {verdict}" for verdict, count in report.counts.items())
    facts = {"passed": report.passed, "calls": len(report.calls), "counts": counts}
    rows = [
        (
            call.call or "(root)",
            call.class_name,
            call.verdict.value.replace("_", " "),
            None if call.judged is None else f"{call.judged.excess:.3g}",
        )
        for call in report.calls
    ]
    return Summary(facts, ("call", "class", "verdict", "x tolerance"), rows)


@summarized(_summary)
class VerificationReport(msgspec.Struct, frozen=True):
    """The module calls of a model against PyTorch.

    Attributes:
        calls: A record for each, the worst first: by verdict, and by how far out of tolerance they are.
        rtol: The relative tolerance that was asked for; None for the default.
        atol: The absolute tolerance that was asked for; None for the default.
        whole_run_error: Why the whole model could not be run in onnxruntime; empty where it could.
        forward_passes: How often PyTorch's model ran.
    """

    calls: tuple[CallVerification, ...]
    rtol: float | None
    atol: float | None
    whole_run_error: str
    forward_passes: int

    @property
    def passed(self) -> bool:
        """Whether nothing is out of tolerance, and something was compared at all."""
        compared = any(call.verdict is Verdict.WITHIN for call in self.calls)
        return compared and not self.whole_run_error and not self.findings

    @property
    def findings(self) -> tuple[CallVerification, ...]:
        """The calls that let it fail, the worst first."""
        return tuple(call for call in self.calls if call.is_finding)

    @property
    def counts(self) -> dict[str, int]:
        """How many calls there are of each verdict."""
        counted = Counter(call.verdict for call in self.calls)
        return {verdict.value: counted[verdict] for verdict in Verdict if counted[verdict]}

    def __getitem__(self, call: str) -> CallVerification:
        found = next((record for record in self.calls if record.call == call), None)
        if found is None:
            raise KeyError(call)
        return found

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON: what is infinite is None, with the reason beside it."""
        whole = VerificationContent(
            self.passed, self.counts, self.calls, self.rtol, self.atol, self.whole_run_error, self.forward_passes
        )
        content: dict[str, Any] = _finite(msgspec.to_builtins(whole))
        return content

    def summary(self) -> str:
        """How many calls there are of each kind, in one line."""
        words = {
            "introduced": "introduce an error",
            "failed": "onnxruntime could not run",
            "undecided": "out of tolerance for unknown reason",
            "inside": "out because of a call inside",
            "inherited": "inherit an error",
            "reordered": "in another order that nobody notices",
            "within": "within tolerance",
            "not_comparable": "not comparable",
        }
        parts = [f"{count} {words[verdict]}" for verdict, count in self.counts.items()]
        reasons = Counter(call.reason for call in self.calls if call.verdict is Verdict.NOT_COMPARABLE)
        if reasons:
            parts[-1] += f" ({', '.join(f'{n} {reason}' for reason, n in sorted(reasons.items()))})"
        return f"{len(self.calls)} calls: {', '.join(parts) or 'none to compare'}"

    def __str__(self) -> str:
        lines = [self.summary()]
        if self.whole_run_error:
            lines.append(f"the whole model does not run in onnxruntime: {self.whole_run_error}")
        for record in self.findings[:_SHOWN]:
            worst = record.judged
            error = f", largest error {worst.absolute:.3g}" if worst is not None else ""
            lines.append(
                f"{record.verdict}: {record.call or '(root)'} ({record.class_name}){error} {record.explanation}".strip()
            )
        if len(self.findings) > _SHOWN:
            lines.append(f"… and {len(self.findings) - _SHOWN} more")
        return "\n".join(lines)


class VerificationContent(msgspec.Struct, frozen=True):
    """A report in plain types: with what follows from it."""

    passed: bool
    counts: dict[str, int]
    calls: tuple[CallVerification, ...]
    rtol: float | None
    atol: float | None
    whole_run_error: str
    forward_passes: int
    schema_version: int = 1


class PrintedVerification(VerificationContent, frozen=True, kw_only=True):
    """A report as the command prints it: with what was compared."""

    file: str
    model: str


def verification_schema() -> dict[str, Any]:
    """The JSON Schema of what ``modelexport verify --format json`` prints."""
    schema: dict[str, Any] = or_null(json_schema("modelexport verification", PrintedVerification))
    return schema


def worst_first(record: CallVerification) -> tuple[int, float]:
    """The place of a record in a report."""
    judged = record.judged
    return _ORDER[record.verdict], -judged.excess if judged is not None else 0.0


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
