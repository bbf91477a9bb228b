"""Nondeterministic outputs: PyTorch's own outputs change with the random state, so they cannot be compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from modelexport.verification.boundary_recording import BoundaryKey, BoundaryRecording, Direction
from modelexport.verification.difference import Tolerance, compare
from modelexport.verification.report import CallVerification, Verdict

# The verdicts that nondeterminism can cause.
_AFFECTED = (Verdict.INTRODUCED, Verdict.INHERITED, Verdict.UNDECIDED)
_NONDETERMINISTIC = "its outputs are nondeterministic: in PyTorch they change with the random state"
_NONDETERMINISTIC_INPUTS = "not compared in the full ONNX run: its inputs are nondeterministic"

# Runs PyTorch's model again and keeps the content of these inputs and outputs, with another random seed from the
# beginning of the call with this id.
ReseededRun = Callable[[Sequence[BoundaryKey], str], BoundaryRecording]


def excuse_nondeterminism(
    records: Sequence[CallVerification],
    id_in_run: Callable[[str], str],
    run: BoundaryRecording,
    run_reseeded: ReseededRun,
    tolerance: Tolerance,
) -> list[CallVerification]:
    """Change the verdict of calls that are out of tolerance only because their outputs are nondeterministic.

    Args:
        records: The records.
        id_in_run: Returns the id of a call in PyTorch's run.
        run: That run, with the outputs of these calls.
        run_reseeded: Runs the model from another random state.
        tolerance: What counts as equal.
    """
    affected = [record for record in records if record.verdict in _AFFECTED]
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

    return [excused(record) if record.verdict in _AFFECTED else record for record in records]
