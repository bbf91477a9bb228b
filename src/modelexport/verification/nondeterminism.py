"""Results that PyTorch itself gives otherwise from another random state: nothing can be said against those."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from modelexport.verification.difference import Tolerance, compare
from modelexport.verification.module_run import ModuleRun, Place, Side
from modelexport.verification.report import CallVerification, Verdict

# What chance can be the cause of.
_MAY_BE_CHANCE = (Verdict.INTRODUCED, Verdict.INHERITED, Verdict.UNDECIDED)
_RANDOM = "PyTorch's own results are others from one random state to the next"
_RANDOM_INPUTS = "in the whole run nothing can be compared: what it is given depends on random numbers"

# Runs PyTorch's model once more, keeping the content of these places, with other random numbers from when the call of
# this identity begins.
StirredRun = Callable[[Sequence[Place], str], ModuleRun]


def without_chance(
    records: Sequence[CallVerification],
    seen_as: Callable[[str], str],
    run: ModuleRun,
    stirred: StirredRun,
    tolerance: Tolerance,
) -> list[CallVerification]:
    """The records, where those that are out of tolerance by chance say so.

    Args:
        records: The records.
        seen_as: The identity of a call in PyTorch's run.
        run: That run, with the results of these calls.
        stirred: Runs the model from another random state.
        tolerance: What counts as equal.
    """
    doubtful = [record for record in records if record.verdict in _MAY_BE_CHANCE]
    if not doubtful:
        return list(records)
    places = {r.call: [Place(seen_as(r.call), Side.OUTPUT, t.name) for t in r.tensors] for r in doubtful}
    again = stirred([place for found in places.values() for place in found], seen_as(""))

    def varied(other: ModuleRun, call: str) -> set[str]:
        return {
            place.name
            for place in places[call]
            if place in run.values
            and place in other.values
            and compare(other.values[place], run.values[place], tolerance, run.seen[place].dtype).is_out
        }

    def judged(record: CallVerification) -> CallVerification:
        own = {t.name for t in record.tensors if t.introduced is not None and t.introduced.is_out}
        all_out = own | {t.name for t in record.tensors if t.total is not None and t.total.is_out}
        if not all_out <= varied(again, record.call):
            return record
        if own and not own <= varied(stirred(places[record.call], seen_as(record.call)), record.call):
            return record
        if own or record.introduced is None:
            reason = record.reason or "random"
            said = "; ".join(text for text in (record.explanation, _RANDOM) if text)
            return msgspec.structs.replace(record, verdict=Verdict.NOT_COMPARABLE, reason=reason, explanation=said)
        return msgspec.structs.replace(record, verdict=Verdict.WITHIN, notes=(*record.notes, _RANDOM_INPUTS))

    return [judged(record) if record.verdict in _MAY_BE_CHANCE else record for record in records]
