"""The report of a verification: a record for each module call, its differences from PyTorch and its verdict."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from modelexport.analysis.report_files import read_report_file
from modelexport.display import Summary, counted, summarized
from modelexport.errors import FileFormatError
from modelexport.hierarchy import FileCheck, json_schema, or_null

_SHOWN = 10
_SCHEMA_VERSION = 1


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """The difference between a tensor and its reference.

    Attributes:
        absolute: The largest difference of two elements; infinite if only one of them is finite.
        relative: The norm of the differences divided by the norm of the reference.
        cosine: The cosine similarity; None if one of the tensors is zero.
        sqnr: The ratio of signal to noise in dB: of the norm of the reference to that of the differences. None if there
            is no difference, or if it is infinite.
        excess: The largest ratio of a difference to the tolerance of its element; above 1 it is out of tolerance.
        elements: The number of elements.
        outside: The number of elements out of tolerance.
        nonfinite: The number of elements that are infinite or NaN in one tensor and different in the other.
        problem: Why the two cannot be compared; they then count as out of tolerance.
    """

    absolute: float
    relative: float
    cosine: float | None
    excess: float
    elements: int
    outside: int = 0
    nonfinite: int = 0
    problem: str = ""
    sqnr: float | None = None

    @property
    def is_out(self) -> bool:
        """Whether it is out of tolerance."""
        return self.excess > 1


class Verdict(enum.StrEnum):
    """The verdict on a call; the worst first."""

    INTRODUCED = "introduced"
    FAILED = "failed"
    UNDECIDED = "undecided"
    INSIDE = "inside"
    INHERITED = "inherited"
    REORDERED = "reordered"
    UNSTABLE = "unstable"
    WITHIN = "within"
    NOT_COMPARABLE = "not_comparable"


# The verdicts that fail a verification.
_FINDINGS = (Verdict.INTRODUCED, Verdict.FAILED, Verdict.UNDECIDED, Verdict.INSIDE, Verdict.INHERITED)
# The verdicts about the call run alone, rather than in the full ONNX run.
_OWN = (Verdict.INTRODUCED, Verdict.INSIDE, Verdict.WITHIN)


class TensorVerification(msgspec.Struct, frozen=True, omit_defaults=True):
    """One output of a call.

    Attributes:
        name: The name of the output.
        tensor: Its tensor in the graph.
        dtype: Its element type in PyTorch.
        introduced: The extracted ONNX model on PyTorch's inputs, compared with PyTorch's output.
        inherited: The full ONNX run, compared with the extracted ONNX model on PyTorch's inputs.
        total: The full ONNX run, compared with PyTorch's output.
    """

    name: str
    tensor: str | None
    dtype: str
    introduced: Difference | None = None
    inherited: Difference | None = None
    total: Difference | None = None


class CallVerification(msgspec.Struct, frozen=True, omit_defaults=True):
    """One module call; its differences are those of its worst output.

    Attributes:
        call: The call.
        tag: Its tag.
        class_name: The class of its module.
        verdict: ``introduced``: on PyTorch's inputs it is out of tolerance, and no call inside it is. ``inside``: on
            PyTorch's inputs it is out of tolerance, because a call inside it is. ``inherited``: on PyTorch's inputs it
            is within tolerance, but its outputs in the full ONNX run are not. ``undecided``: its outputs in the full
            ONNX run are out of tolerance, and it cannot run alone. ``failed``: onnxruntime could not run it alone.
            ``reordered``: its outputs are permuted, without effect on its callers. ``unstable``: it is out of
            tolerance, and PyTorch's own outputs change as much if modules round differently. ``within``: it is within
            tolerance. ``not_comparable``: it cannot run alone, and no output is known to be out of tolerance.
        introduced: The error on PyTorch's inputs.
        inherited: The effect that the errors of its inputs in the full ONNX run have on its outputs.
        total: The error of its outputs in the full ONNX run.
        reason: Why it could not run alone: ``fused``, ``no_operation``, ``unknown_boundary``, ``not_run`` (PyTorch's
            run has no such call), ``failed``, ``no_result`` (none of its outputs is in the graph), ``not_compared`` (an
            output of the whole model could not be compared), or ``random`` (its outputs are nondeterministic in
            PyTorch).
        explanation: The reason in words.
        source: For ``inside``, the worst of the calls inside that introduce an error.
        fused_with: The calls it is fused with.
        tensors: Its outputs.
        notes: Remarks on the comparison.
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
        if self.verdict in (Verdict.REORDERED, Verdict.UNSTABLE):
            return self.introduced if self.introduced is not None and self.introduced.is_out else self.total
        return self.introduced if self.verdict in _OWN else self.total

    @property
    def is_finding(self) -> bool:
        """Whether it fails the verification."""
        return self.verdict in _FINDINGS or self.reason == "not_compared"


def _summary(report: VerificationReport) -> Summary:
    counts = ", ".join(f"{count} {verdict}" for verdict, count in report.counts.items())
    facts = {"passed": report.passed, "calls": len(report.calls), "counts": counts}
    rows = [
        (
            call.call or "(root)",
            call.class_name,
            call.verdict.value.replace("_", " "),
            None if call.judged is None else f"{call.judged.excess:.3g}",
            None if call.judged is None or call.judged.sqnr is None else f"{call.judged.sqnr:.1f}",
        )
        for call in report.calls
    ]
    return Summary(facts, ("call", "class", "verdict", "x tolerance", "SQNR dB"), rows)


@summarized(_summary)
class VerificationReport(msgspec.Struct, frozen=True):
    """The module calls of a model, compared with PyTorch.

    Attributes:
        calls: A record for each call, the worst first: by verdict, then by excess over the tolerance.
        rtol: The relative tolerance; None for the default.
        atol: The absolute tolerance; None for the default.
        whole_run_error: Why the full model could not run in onnxruntime; empty if it could.
        forward_passes: How many forward passes PyTorch's model ran.
        precisions: The types of the floats that the graph computes with, and the widths of integers that represent
            floats. The default tolerance is that of the coarsest.
        file: The file; empty for a model that is not in one.
        graph_hash: The hash of its graph.
        check: The comparison of its outputs on probes; None if it was not asked for.
    """

    calls: tuple[CallVerification, ...]
    rtol: float | None
    atol: float | None
    whole_run_error: str
    forward_passes: int
    precisions: tuple[str, ...] = ()
    file: str = ""
    graph_hash: str = ""
    check: FileCheck | None = None

    @property
    def passed(self) -> bool:
        """Whether at least one call was compared, and none is out of tolerance, on probes neither."""
        compared = any(call.verdict is Verdict.WITHIN for call in self.calls)
        is_wrong = self.check is not None and self.check.is_wrong
        return compared and not self.whole_run_error and not self.findings and not is_wrong

    @property
    def findings(self) -> tuple[CallVerification, ...]:
        """The calls that fail it, the worst first."""
        return tuple(call for call in self.calls if call.is_finding)

    @property
    def counts(self) -> dict[str, int]:
        """The number of calls with each verdict."""
        counted = Counter(call.verdict for call in self.calls)
        return {verdict.value: counted[verdict] for verdict in Verdict if counted[verdict]}

    def __getitem__(self, call: str) -> CallVerification:
        found = next((record for record in self.calls if record.call == call), None)
        if found is None:
            raise KeyError(call)
        return found

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON; infinite numbers are None."""
        derived = {"passed": self.passed, "counts": self.counts, "schema_version": _SCHEMA_VERSION}
        content: dict[str, Any] = msgspec.json.decode(msgspec.json.encode({**msgspec.to_builtins(self), **derived}))
        return content

    def summary(self) -> str:
        """The number of calls with each verdict, in one line."""
        words = {
            "introduced": "introduce an error",
            "failed": "onnxruntime could not run",
            "undecided": "out of tolerance for an unknown reason",
            "inside": "out of tolerance because of a call inside",
            "inherited": "inherit an error",
            "reordered": "with permuted outputs without effect",
            "unstable": "unstable in PyTorch itself",
            "within": "within tolerance",
            "not_comparable": "not comparable",
        }
        parts = [f"{count} {words[verdict]}" for verdict, count in self.counts.items()]
        reasons = Counter(call.reason for call in self.calls if call.verdict is Verdict.NOT_COMPARABLE)
        if reasons:
            parts[-1] += f" ({', '.join(f'{n} {reason}' for reason, n in sorted(reasons.items()))})"
        return f"{counted(len(self.calls), 'call')}: {', '.join(parts) or 'none to compare'}"

    def __str__(self) -> str:
        lines = [self.summary()]
        if self.check is not None:
            lines.append(f"on probes: {self.check}")
        if self.whole_run_error:
            lines.append(f"the full model does not run in onnxruntime: {self.whole_run_error}")
        for record in self.findings[:_SHOWN]:
            worst = record.judged
            error = f", largest error {worst.absolute:.3g}" if worst is not None else ""
            lines.append(
                f"{record.verdict}: {record.call or '(root)'} ({record.class_name}){error} {record.explanation}".strip()
            )
        if len(self.findings) > _SHOWN:
            lines.append(f"… and {len(self.findings) - _SHOWN} more")
        return "\n".join(lines)


class PrintedVerification(VerificationReport, frozen=True, kw_only=True):
    """A report as the command prints it, with derived fields and the names of file and model."""

    precisions: tuple[str, ...]
    passed: bool
    counts: dict[str, int]
    file: str
    graph_hash: str
    model: str
    check: FileCheck | None
    schema_version: int = _SCHEMA_VERSION


def verification_schema() -> dict[str, Any]:
    """The JSON Schema of the output of ``modelexport verify --format json``."""
    schema: dict[str, Any] = or_null(json_schema("modelexport verification", PrintedVerification))
    return schema


def read_verification(path: str | Path) -> VerificationReport:
    """Read a report that was written as JSON.

    Raises:
        InputError: The file cannot be read.
        FileFormatError: It is not a report of this package.
    """
    try:
        content = msgspec.json.decode(read_report_file(path))
        for difference in _differences(content):
            # JSON has no infinity: it is written as null.
            difference.update((name, math.inf) for name in _MAYBE_INFINITE if difference.get(name, 0) is None)
        return msgspec.convert(content, VerificationReport)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FileFormatError(f"{path} was not written by modelexport verify --format json: {error}") from error


_MAYBE_INFINITE = ("absolute", "relative", "excess")


def _differences(content: object) -> Iterator[dict[str, Any]]:
    """The objects of a report that are differences."""
    waiting = [content]
    while waiting:
        current = waiting.pop()
        if isinstance(current, list):
            waiting += current
        elif isinstance(current, dict):
            if "absolute" in current:
                yield current
            waiting += current.values()
