"""The verdict on each module call, and what can excuse one that is out of tolerance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import msgspec

from modelexport.analysis import CallVerification, Difference, Verdict
from modelexport.hierarchy import HierarchyDocument
from modelexport.verification.difference import Tolerance, compare
from modelexport.verification.pytorch_run import BoundaryKey, BoundaryRecording, Direction
from modelexport.verification.rounding import ROUNDINGS, Usual, changes_by_rounding, is_explained

_ORDER = list(Verdict)
_NONDETERMINISTIC = "its outputs are nondeterministic: in PyTorch they change with the random state"
_NONDETERMINISTIC_INPUTS = "not compared in the full ONNX run: its inputs are nondeterministic"
# Runs PyTorch's model again and keeps the content of these inputs and outputs, with another random seed from the
# beginning of the call with this id.
ReseededRun = Callable[[Sequence[BoundaryKey], str], BoundaryRecording]
# The same where the results of modules change by some units in the last place.
RoundedRun = Callable[[Collection[BoundaryKey], int], BoundaryRecording]


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


def excuse_rounding(
    records: Sequence[CallVerification],
    id_in_run: Callable[[str], str],
    run: BoundaryRecording,
    run_rounded: RoundedRun,
    tolerance: Tolerance,
) -> list[CallVerification]:
    """Change the verdict of calls whose errors are no larger than rounding makes them in PyTorch itself."""
    affected = [record for record in records if record.verdict in _EXCUSABLE]
    if not affected:
        return list(records)
    keys = {BoundaryKey(id_in_run(r.call), Direction.OUTPUT, t.name) for r in affected for t in r.tensors}
    usual = {key: Usual(run.values[key], run.tensors[key].dtype) for key in keys & run.values.keys()}
    changes = changes_by_rounding(usual, (run_rounded(keys, units).values for units in ROUNDINGS), tolerance)

    def excused(record: CallVerification) -> CallVerification:
        call = id_in_run(record.call)
        errors = [
            (difference, changes.get(BoundaryKey(call, Direction.OUTPUT, tensor.name)))
            for tensor in record.tensors
            for difference in (tensor.introduced, tensor.total)
            if difference is not None and difference.is_out
        ]
        if not all(is_explained(difference, change) for difference, change in errors):
            return record
        largest = max(change for _, change in errors if change is not None)
        explanation = f"PyTorch's own results change by {largest:.2g} if the results of modules are rounded differently"
        return msgspec.structs.replace(record, verdict=Verdict.UNSTABLE, explanation=explanation)

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
