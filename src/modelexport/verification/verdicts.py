"""What is concluded from the differences of a call, and from those of the calls around and inside of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from modelexport.hierarchy import HierarchyDocument
from modelexport.verification.difference import Difference
from modelexport.verification.report import CallVerification, Verdict, worst_first

# What an order alone can be the cause of.
_MAY_BE_ORDER = (Verdict.INTRODUCED, Verdict.INHERITED, Verdict.UNDECIDED)


def worst(differences: Iterable[Difference | None]) -> Difference | None:
    """The difference that is furthest out."""
    return max((d for d in differences if d is not None), key=lambda d: d.excess, default=None)


def verdict_of(reason: str, introduced: Difference | None, total: Difference | None) -> Verdict:
    """What a call's own differences say, and why it could not be run alone."""
    if reason == "failed":
        return Verdict.FAILED
    if introduced is not None and introduced.is_out:
        return Verdict.INTRODUCED
    if total is not None and total.is_out:
        # What runs no operation has its errors from elsewhere.
        is_known = introduced is not None or reason == "no_operation"
        return Verdict.INHERITED if is_known else Verdict.UNDECIDED
    return Verdict.WITHIN if introduced is not None else Verdict.NOT_COMPARABLE


def with_orders(
    records: Sequence[CallVerification],
    document: HierarchyDocument,
    reordered: Collection[str],
    compare: Callable[[str], CallVerification],
) -> Iterator[CallVerification]:
    """The records, where those whose results are in another order say so, if the calls around do not notice.

    Args:
        records: The records.
        document: Which call is around which.
        reordered: The calls whose results hold the same numbers in another order; it may grow as calls are compared.
        compare: Compares a call that has no record.
    """
    parents = {call.id: call.parent for call in document.calls}
    known = {record.call: record for record in records}

    def unmoved(record: CallVerification) -> str | None:
        """The nearest call around that shows no order, where its results are within tolerance."""
        own = record.introduced is not None and record.introduced.is_out
        parent = parents.get(record.call)
        while parent is not None:
            if parent not in known:
                known[parent] = compare(parent)
            around = known[parent]
            difference = (around.introduced if own else around.total) or around.total
            if difference is not None and parent not in reordered:
                return None if difference.is_out else parent
            parent = parents.get(parent)
        return None

    for record in records:
        around = unmoved(record) if record.call in reordered and record.verdict in _MAY_BE_ORDER else None
        if around is None:
            yield record
        else:
            name = repr(around) if around else "the model"
            said = f"the same numbers in another order, and {name} gives the same with either"
            yield msgspec.structs.replace(record, verdict=Verdict.REORDERED, explanation=said)


def with_sources(records: Sequence[CallVerification], document: HierarchyDocument) -> Iterator[CallVerification]:
    """The records, where those that introduce an error because a call inside does say so."""
    parents: Mapping[str, str | None] = {call.id: call.parent for call in document.calls}
    culprits = sorted((r for r in records if r.verdict is Verdict.INTRODUCED), key=worst_first)
    around: set[str] = set()
    for record in culprits:
        parent = parents.get(record.call)
        while parent is not None and parent not in around:
            around.add(parent)
            parent = parents.get(parent)
    # Innermost ones only, the worst first: the first to reach a call names it.
    sources: dict[str, str] = {}
    for record in culprits:
        if record.call in around:
            continue
        parent = parents.get(record.call)
        while parent is not None and parent not in sources:
            sources[parent] = record.call
            parent = parents.get(parent)
    for record in records:
        if record.verdict is Verdict.INTRODUCED and record.call in sources:
            source = sources[record.call]
            said = f"the error is introduced inside, by {source!r}"
            yield msgspec.structs.replace(record, verdict=Verdict.INSIDE, source=source, explanation=said)
        else:
            yield record
