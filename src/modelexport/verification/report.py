"""The report of a verification: a record for each module call, its verdict, and what can excuse it."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from modelexport.display import Summary, summarized
from modelexport.hierarchy import HierarchyDocument, json_schema, or_null
from modelexport.verification.difference import Difference, Tolerance, compare
from modelexport.verification.pytorch_run import BoundaryKey, BoundaryRecording, Direction

_SHOWN = 10
_SCHEMA_VERSION = 1
_NONDETERMINISTIC = "its outputs are nondeterministic: in PyTorch they change with the random state"
_NONDETERMINISTIC_INPUTS = "not compared in the full ONNX run: its inputs are nondeterministic"
# Runs PyTorch's model again and keeps the content of these inputs and outputs, with another random seed from the
# beginning of the call with this id.
ReseededRun = Callable[[Sequence[BoundaryKey], str], BoundaryRecording]


class Verdict(enum.StrEnum):
    """The verdict on a call; the worst first."""

    INTRODUCED = "introduced"
    FAILED = "failed"
    UNDECIDED = "undecided"
    INSIDE = "inside"
    INHERITED = "inherited"
    REORDERED = "reordered"
    WITHIN = "within"
    NOT_COMPARABLE = "not_comparable"


# The verdicts that fail a verification.
_FINDINGS = (Verdict.INTRODUCED, Verdict.FAILED, Verdict.UNDECIDED, Verdict.INSIDE, Verdict.INHERITED)
# The verdicts about the call run alone, rather than in the full ONNX run.
_OWN = (Verdict.INTRODUCED, Verdict.INSIDE, Verdict.WITHIN)
_ORDER = list(Verdict)


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
            ``reordered``: its outputs are permuted, without effect on its callers. ``within``: it is within tolerance.
            ``not_comparable``: it cannot run alone, and no output is known to be out of tolerance.
        introduced: The error on PyTorch's inputs.
        inherited: The effect that the errors of its inputs in the full ONNX run have on its outputs.
        total: The error of its outputs in the full ONNX run.
        reason: Why it could not run alone: ``fused``, ``no_operation``, ``unknown_boundary``, ``not_run`` (PyTorch's
            run has no such call), ``failed``, ``no_result`` (none of its outputs is in the graph), or ``random`` (its
            outputs are nondeterministic in PyTorch).
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
        if self.verdict is Verdict.REORDERED:
            return self.introduced if self.introduced is not None and self.introduced.is_out else self.total
        return self.introduced if self.verdict in _OWN else self.total

    @property
    def is_finding(self) -> bool:
        """Whether it fails the verification."""
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
    """

    calls: tuple[CallVerification, ...]
    rtol: float | None
    atol: float | None
    whole_run_error: str
    forward_passes: int
    precisions: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether at least one call was compared, and none is out of tolerance."""
        compared = any(call.verdict is Verdict.WITHIN for call in self.calls)
        return compared and not self.whole_run_error and not self.findings

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
    model: str
    schema_version: int = _SCHEMA_VERSION


def verification_schema() -> dict[str, Any]:
    """The JSON Schema of the output of ``modelexport verify --format json``."""
    schema: dict[str, Any] = or_null(json_schema("modelexport verification", PrintedVerification))
    return schema


def worst_first(record: CallVerification) -> tuple[int, float]:
    """The sort key of a record in a report."""
    judged = record.judged
    return _ORDER.index(record.verdict), -judged.excess if judged is not None else 0.0


# The verdicts that a permutation or nondeterminism can cause.
_EXCUSABLE = (Verdict.INTRODUCED, Verdict.INHERITED, Verdict.UNDECIDED)


def worst(differences: Iterable[Difference | None]) -> Difference | None:
    """The difference with the largest excess over the tolerance."""
    return max((d for d in differences if d is not None), key=lambda d: d.excess, default=None)


def verdict_of(reason: str, introduced: Difference | None, total: Difference | None) -> Verdict:
    """The verdict by a call's own differences, and by the reason why it could not run alone."""
    if reason == "failed":
        return Verdict.FAILED
    if introduced is not None and introduced.is_out:
        return Verdict.INTRODUCED
    if total is not None and total.is_out:
        # A call without operators inherits its errors.
        is_known = introduced is not None or reason == "no_operation"
        return Verdict.INHERITED if is_known else Verdict.UNDECIDED
    return Verdict.WITHIN if introduced is not None else Verdict.NOT_COMPARABLE


def excuse_nondeterminism(
    records: Sequence[CallVerification],
    id_in_run: Callable[[str], str],
    run: BoundaryRecording,
    run_reseeded: ReseededRun,
    tolerance: Tolerance,
) -> list[CallVerification]:
    """Change the verdict of calls that are out of tolerance only because their outputs are nondeterministic.

    `id_in_run` returns the id of a call in PyTorch's run, which `run` recorded with the outputs of these calls.
    """
    affected = [record for record in records if record.verdict in _EXCUSABLE]
    if not affected:
        return list(records)
    keys = {r.call: [BoundaryKey(id_in_run(r.call), Direction.OUTPUT, t.name) for t in r.tensors] for r in affected}
    reseeded = run_reseeded([key for found in keys.values() for key in found], id_in_run(""))

    def changed(other: BoundaryRecording, call: str) -> set[str]:
        return {
            key.name
            for key in keys[call]
            if key in run.values
            and key in other.values
            and compare(other.values[key], run.values[key], tolerance, run.tensors[key].dtype).is_out
        }

    def excused(record: CallVerification) -> CallVerification:
        own = {t.name for t in record.tensors if t.introduced is not None and t.introduced.is_out}
        all_out = own | {t.name for t in record.tensors if t.total is not None and t.total.is_out}
        if not all_out <= changed(reseeded, record.call):
            return record
        if own and not own <= changed(run_reseeded(keys[record.call], id_in_run(record.call)), record.call):
            return record
        if own or record.introduced is None:
            reason = record.reason or "random"
            explanation = "; ".join(text for text in (record.explanation, _NONDETERMINISTIC) if text)
            return msgspec.structs.replace(
                record, verdict=Verdict.NOT_COMPARABLE, reason=reason, explanation=explanation
            )
        return msgspec.structs.replace(record, verdict=Verdict.WITHIN, notes=(*record.notes, _NONDETERMINISTIC_INPUTS))

    return [excused(record) if record.verdict in _EXCUSABLE else record for record in records]


def excuse_permutations(
    records: Sequence[CallVerification],
    document: HierarchyDocument,
    permuted: Collection[str],
    compare: Callable[[str], tuple[CallVerification, bool]],
) -> Iterator[CallVerification]:
    """Change the verdict of calls whose outputs are only permuted, if the permutation has no effect on their caller.

    `compare` compares a call without a record, and also returns whether its outputs are only permuted.
    """
    callers = _callers_in(document)
    known = {record.call: (record, record.call in permuted) for record in records}

    def unaffected_caller(record: CallVerification) -> str | None:
        """The nearest caller whose outputs are not permuted, if they are within tolerance."""
        own = record.introduced is not None and record.introduced.is_out
        for call in callers(record.call):
            if call not in known:
                known[call] = compare(call)
            caller, is_permutation = known[call]
            difference = (caller.introduced if own else caller.total) or caller.total
            if difference is not None and not is_permutation:
                return None if difference.is_out else call
        return None

    for record in records:
        is_candidate = record.call in permuted and record.verdict in _EXCUSABLE
        caller_id = unaffected_caller(record) if is_candidate else None
        if caller_id is None:
            yield record
        else:
            name = repr(caller_id) if caller_id else "the model"
            explanation = f"permuted outputs: the same values in another order, without effect on {name}"
            yield msgspec.structs.replace(record, verdict=Verdict.REORDERED, explanation=explanation)


def _callers_in(document: HierarchyDocument) -> Callable[[str], Iterator[str]]:
    """A function that returns the callers of a call, innermost first."""
    parents = {call.id: call.parent for call in document.calls}

    def callers(call: str) -> Iterator[str]:
        parent = parents.get(call)
        while parent is not None:
            yield parent
            parent = parents.get(parent)

    return callers


def name_sources(records: Sequence[CallVerification], document: HierarchyDocument) -> Iterator[CallVerification]:
    """Change the verdict of calls that introduce an error because a call inside does, and name that call."""
    callers = _callers_in(document)
    introducing = sorted((r for r in records if r.verdict is Verdict.INTRODUCED), key=worst_first)
    outer = {caller for record in introducing for caller in callers(record.call)}
    # Innermost calls only, the worst first: a caller gets the worst call inside it.
    sources: dict[str, str] = {}
    for record in introducing:
        for caller in callers(record.call) if record.call not in outer else ():
            sources.setdefault(caller, record.call)
    for record in records:
        if record.verdict is Verdict.INTRODUCED and record.call in sources:
            source = sources[record.call]
            explanation = f"the error is introduced inside, by {source!r}"
            yield msgspec.structs.replace(record, verdict=Verdict.INSIDE, source=source, explanation=explanation)
        else:
            yield record
