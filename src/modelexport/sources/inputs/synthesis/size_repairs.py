"""Repairs of sizes: by the operands of the operation that failed, the numbers in its message, and earlier attempts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from modelexport.sources.inputs.synthesis.attempt import Attempt
from modelexport.sources.inputs.synthesis.initial_guess import BATCH
from modelexport.sources.inputs.synthesis.provenance import Operand
from modelexport.sources.inputs.synthesis.tensor_spec import Proposal, TensorSpec
from modelexport.sources.inputs.synthesis.trial_call import Failure

_MAX_ORIGINS = 2
_MAX_SUSPECTS = 4
_MAX_SIZE = 1 << 12
_MAX_EARLIER = 24


def resize(attempt: Attempt, size: int, wanted: int) -> Iterator[Proposal]:
    """Replace `size` by `wanted`: on all such axes of one tensor, of all tensors, then on one axis at a time."""
    if not 0 < wanted <= 4 * _MAX_SIZE:
        return
    changed = {}
    for name, spec in attempt.tensors.items():
        axes = [axis for axis, given in enumerate(spec.shape) if given == size and (axis or len(spec.shape) == 1)]
        if axes:
            changed[name] = spec.resized(dict.fromkeys(axes, wanted))
            yield attempt.replace(**{name: changed[name]})
    if len(changed) > 1:
        yield attempt.replace(**changed)
    for name, spec in attempt.tensors.items():
        axes = [axis for axis, given in enumerate(spec.shape) if given == size]
        if len(axes) > 1:
            yield from (attempt.replace(**{name: spec.resized({axis: wanted})}) for axis in reversed(axes))


def match_operands(attempt: Attempt) -> Iterator[Proposal]:
    """Change a size that an operand has from an argument to the size of another operand."""
    named = attempt.tensors
    operands = attempt.failure.operands
    for place, operand in sorted(enumerate(operands), key=lambda item: len(item[1].origins)):
        for found, wanted in _disagreements(place, operands, attempt.numbers):
            for name in operand.origins[:_MAX_ORIGINS]:
                if name in named:
                    yield from (attempt.replace(**{name: spec}) for spec in _rescale(named[name], found, wanted))
            # Arguments of one shape that are concatenated have equal shares in the size.
            alike = {name: named[name] for name in operand.origins if name in named}
            if len(alike) > 1 and len({spec.shape for spec in alike.values()}) == 1:
                for specs in zip(*(_rescale(spec, found, wanted) for spec in alike.values()), strict=True):
                    yield attempt.replace(**dict(zip(alike, specs, strict=True)))


def _disagreements(place: int, operands: tuple[Operand, ...], numbers: list[int]) -> list[tuple[int, int]]:
    """The sizes of an operand that are in the message, each with those of the other operands that are in it too."""
    own = [size for size in operands[place].shape if size in numbers]
    theirs = [size for other, operand in enumerate(operands) if other != place for size in operand.shape]
    likely = [size for size in theirs if size in numbers and size not in operands[place].shape]
    pairs = [(found, wanted) for found in reversed(own) for wanted in likely if found != wanted and wanted > 1]
    return list(dict.fromkeys(pairs))


def _rescale(spec: TensorSpec, found: int, wanted: int) -> Iterator[TensorSpec]:
    """Change a size of the argument such that `found` becomes `wanted`: the size is `found`, or proportional to it."""
    same = [axis for axis, size in enumerate(spec.shape) if size == found]
    yield from (spec.resized({axis: wanted}) for axis in reversed(same))
    if len(same) > 1:
        yield spec.resized(dict.fromkeys(same, wanted))
    for axis, size in enumerate(spec.shape):
        if axis and size != found and size * wanted % found == 0 and 0 < size * wanted // found <= _MAX_SIZE:
            yield spec.resized({axis: size * wanted // found})


def take_size_from_message(attempt: Attempt) -> Iterator[Proposal]:
    """Replace a size that is in the message by another number of the message."""
    given = {size for spec in attempt.tensors.values() for size in spec.shape if size != BATCH}
    for size, wanted in itertools.permutations(attempt.numbers, 2):
        if size in given and wanted > 1:
            yield from resize(attempt, size, wanted)


def probe_sizes(attempt: Attempt) -> Iterator[Proposal]:
    """Halve one size of an argument that an operand was computed from, for `extrapolate_size` to see the effect."""
    for name in attempt.failure.suspects[:_MAX_SUSPECTS] if attempt.failure.operands else ():
        spec = attempt.tensors.get(name)
        if spec is not None:
            for axis in range(len(spec.shape) - 1, 0, -1):
                yield attempt.replace(**{name: spec.resized({axis: spec.shape[axis] // 2 or 2})})


def extrapolate_size(attempt: Attempt) -> Iterator[Proposal]:
    """Solve for the right size, if an operand grows with it as it did between two calls that failed at one place."""
    failure = attempt.failure
    for before in reversed(attempt.earlier[-_MAX_EARLIER:]):
        change = _only_change(before, attempt) if _is_same_place(failure, before.failure) else None
        if change is None:
            continue
        name, axis = change
        spec = attempt.tensors[name]
        size, was = spec.shape[axis], before.tensors[name].shape[axis]
        for place, operand in enumerate(failure.operands):
            for found, once in zip(operand.shape, before.failure.operands[place].shape, strict=True):
                for wanted in _sizes_of_others(place, failure.operands, attempt.numbers) if found != once else ():
                    steps, rest = divmod((wanted - found) * (size - was), found - once)
                    if rest == 0 and steps and 0 < size + steps <= _MAX_SIZE:
                        yield attempt.replace(**{name: spec.resized({axis: size + steps})})


def _is_same_place(failure: Failure, other: Failure) -> bool:
    """Whether two calls failed at the same operation."""
    ranks = [[len(operand.shape) for operand in one.operands] for one in (failure, other)]
    return failure.progress == other.progress and bool(ranks[0]) and ranks[0] == ranks[1]


def _only_change(before: Attempt, after: Attempt) -> tuple[str, int] | None:
    """The one size that differs between two attempts."""
    if before.proposal.keys() != after.proposal.keys():
        return None
    names = [name for name in before.proposal if before.proposal[name] is not after.proposal[name]]
    if len(names) != 1 or names[0] not in before.tensors or names[0] not in after.tensors:
        return None
    shapes = before.tensors[names[0]].shape, after.tensors[names[0]].shape
    axes = [axis for axis, (one, other) in enumerate(zip(*shapes, strict=False)) if one != other]
    return (names[0], axes[0]) if len(shapes[0]) == len(shapes[1]) and len(axes) == 1 else None


def _sizes_of_others(place: int, operands: tuple[Operand, ...], numbers: list[int]) -> list[int]:
    others = [size for other, operand in enumerate(operands) if other != place for size in reversed(operand.shape)]
    return [size for size in dict.fromkeys(others) if size in numbers]
