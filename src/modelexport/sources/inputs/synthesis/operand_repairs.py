"""Other sizes for the arguments that the operands of a failed operation are made of."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence

from modelexport.sources.inputs.synthesis.provenance import Operand
from modelexport.sources.inputs.synthesis.tensor_spec import Proposal, TensorSpec, tensors
from modelexport.sources.inputs.synthesis.trial_call import Failure

_MOST_ORIGINS = 2
_LARGEST = 1 << 12
# Sizes that differ by more than this did not come from each other by a few that were added.
_FEW = 8
_MOST_EARLIER = 24
_VIEW = re.compile(r"shape '\[(?P<shape>[-\d, ]+)\]' is invalid for input of size (?P<size>\d+)")


def by_operands(proposal: Proposal, failure: Failure, numbers: list[int]) -> Iterator[Proposal]:
    """With a size changed that an operand has from an argument, to one that another operand has."""
    named = dict(tensors(proposal))
    for place, operand in sorted(enumerate(failure.operands), key=lambda item: len(item[1].origins)):
        for found, wanted in _disagreements(place, failure.operands, numbers):
            for name in operand.origins[:_MOST_ORIGINS]:
                if name in named:
                    for spec in rescaled(named[name], found, wanted):
                        yield {**proposal, name: spec}
            # Arguments of one shape that are joined have a part in it each.
            alike = {name: named[name] for name in operand.origins if name in named}
            if len(alike) > 1 and len({spec.shape for spec in alike.values()}) == 1:
                for specs in zip(*(rescaled(spec, found, wanted) for spec in alike.values()), strict=True):
                    yield {**proposal, **dict(zip(alike, specs, strict=True))}
            # A size that is given as a number leaves no trace in the tensors that are made of it.
            if not operand.origins:
                for name, value in proposal.items():
                    if type(value) is int and value * wanted % found == 0:
                        yield {**proposal, name: value * wanted // found}


def _disagreements(place: int, operands: tuple[Operand, ...], numbers: list[int]) -> list[tuple[int, int]]:
    """The sizes of an operand that the error speaks of, each with those of the others that it speaks of too."""
    own = [size for size in operands[place].shape if size in numbers]
    theirs = [size for other, operand in enumerate(operands) if other != place for size in operand.shape]
    likely = [size for size in theirs if size in numbers and size not in operands[place].shape]
    pairs = [(found, wanted) for found in reversed(own) for wanted in likely if found != wanted and wanted > 1]
    return list(dict.fromkeys(pairs))


def rescaled(spec: TensorSpec, found: int, wanted: int) -> Iterator[TensorSpec]:
    """The argument with a size such that what was `found` becomes `wanted`: it, a multiple of it, or some more."""
    same = [axis for axis, size in enumerate(spec.shape) if size == found]
    for axis in reversed(same):
        yield spec.resized({axis: wanted})
    if len(same) > 1:
        yield spec.resized(dict.fromkeys(same, wanted))
    for axis, size in enumerate(spec.shape):
        if axis and size != found and size * wanted % found == 0 and 0 < size * wanted // found <= _LARGEST:
            yield spec.resized({axis: size * wanted // found})
    for axis, size in enumerate(spec.shape):
        if axis and size < found and min(abs(wanted - found), found - size) <= _FEW and size + wanted - found > 0:
            yield spec.resized({axis: size + wanted - found})


def by_view(proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
    """With as many numbers in an argument as can be laid out in the shape that the code lays them out in."""
    match = _VIEW.search(failure.words)
    sizes = [int(size) for size in match["shape"].split(",")] if match is not None else []
    if match is None or -1 not in sizes:
        return
    whole = abs(math.prod(sizes))
    named = dict(tensors(proposal))
    for name in failure.suspects[:_MOST_ORIGINS]:
        spec = named.get(name)
        if spec is None or not spec.shape or int(match["size"]) % math.prod(spec.shape):
            continue
        # So many numbers come of each that is given.
        unit = whole // math.gcd(whole, int(match["size"]) // math.prod(spec.shape))
        if 1 < unit <= _LARGEST:
            yield {**proposal, name: dataclasses.replace(spec, shape=(spec.shape[0], unit))}
            yield {**proposal, name: spec.resized({len(spec.shape) - 1: unit})}


def probes(proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
    """With one size of an argument changed that an operand is made of, to see what becomes of it."""
    named = dict(tensors(proposal))
    for name in failure.suspects[: 2 * _MOST_ORIGINS]:
        spec = named.get(name)
        if spec is not None and failure.operands:
            for axis in range(len(spec.shape) - 1, 0, -1):
                size = spec.shape[axis]
                yield {**proposal, name: spec.resized({axis: size // 2 if size > 1 else 2})}


def by_what_changed(
    proposal: Proposal, failure: Failure, earlier: Sequence[tuple[Proposal, Failure]], numbers: list[int]
) -> Iterator[Proposal]:
    """With the size that is right if an operand grows with it as it did between two calls that failed at one place."""
    for before, other in reversed(earlier[-_MOST_EARLIER:]):
        change = _one_change(before, proposal) if _same_place(failure, other) else None
        if change is None:
            continue
        name, axis = change
        size, was = proposal[name].shape[axis], before[name].shape[axis]
        for place, operand in enumerate(failure.operands):
            for found, once in zip(operand.shape, other.operands[place].shape, strict=True):
                for wanted in _sizes_of_others(place, failure.operands, numbers) if found != once else ():
                    steps, rest = divmod((wanted - found) * (size - was), found - once)
                    if rest == 0 and steps and 0 < size + steps <= _LARGEST:
                        yield {**proposal, name: proposal[name].resized({axis: size + steps})}


def _same_place(failure: Failure, other: Failure) -> bool:
    """Whether two calls failed at the same operation."""
    ranks = [[len(operand.shape) for operand in one.operands] for one in (failure, other)]
    return failure.progress == other.progress and bool(ranks[0]) and ranks[0] == ranks[1]


def _one_change(before: Proposal, after: Proposal) -> tuple[str, int] | None:
    """The one size that differs between two proposals."""
    if before.keys() != after.keys():
        return None
    names = [name for name in before if before[name] is not after[name]]
    specs = [(before[name], after[name]) for name in names]
    if len(names) != 1 or not all(isinstance(spec, TensorSpec) for spec in specs[0]):
        return None
    shapes = [spec.shape for spec in specs[0]]
    axes = [axis for axis, sizes in enumerate(zip(*shapes, strict=False)) if len(set(sizes)) > 1]
    return (names[0], axes[0]) if len(shapes[0]) == len(shapes[1]) and len(axes) == 1 else None


def _sizes_of_others(place: int, operands: tuple[Operand, ...], numbers: list[int]) -> list[int]:
    others = [size for other, operand in enumerate(operands) if other != place for size in reversed(operand.shape)]
    return [size for size in dict.fromkeys(others) if size in numbers]
