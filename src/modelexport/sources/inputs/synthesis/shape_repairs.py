"""Repairs of the shape of an argument: by the message, code and operands of what failed, and by earlier attempts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from modelexport.sources.inputs.synthesis.failure_hints import Operand
from modelexport.sources.inputs.synthesis.initial_guess import BATCH, LENGTH, channels_of
from modelexport.sources.inputs.synthesis.model_facts import CONVOLUTIONS, ModelFacts
from modelexport.sources.inputs.synthesis.tensor_spec import Kind, Proposal, TensorSpec
from modelexport.sources.inputs.synthesis.trial_call import Attempt, Failure

_FRAMES = 5
_SIDE = 16
_MAX_RANK = 6
# A matrix multiplies tensors of any rank.
_RANK_OF_MATRIX = 2
# Messages that contain a rank.
_RANKS = (
    re.compile(r"values to unpack \(expected (?P<rank>\d)\b"),
    re.compile(r"len\(dims\) = (?P<rank>\d)\b"),
    re.compile(r"(?P<rank>\d)D \(batched\)"),
    re.compile(r"number of sizes provided \((?P<rank>\d)\)"),
    re.compile(r"\b(?P<rank>\d)-?[dD]\b"),
)
# Messages that contain an axis which the tensor has not.
_MISSING_AXES = (
    re.compile(r"expected to be in range of \[-?\d+, -?\d+\], but got (?P<axis>\d)"),
    re.compile(r"too many indices for tensor of dimension (?P<axis>\d)"),
)
_SHAPE = re.compile(r"[\[(](?P<parts>[\w\s]+(?:,[\w\s]+)+)[\])]")
_TARGETS = re.compile(r"^\s*\(?(?P<targets>[\w\s,*]+?)\)?\s*=[^=]")
_CHANNELS = re.compile(r"^(?:c|ch|.*channels?.*|.*_dim)$", re.IGNORECASE)
_MAX_ORIGINS = 2
_MAX_SUSPECTS = 4
_MAX_SIZE = 1 << 12
_MAX_EARLIER = 24


def change_rank(attempt: Attempt) -> Iterator[Proposal]:
    """Give an argument as many axes as the error, or the code that failed, says there have to be."""
    for rank in _ranks(attempt.failure):
        for name, operand in _arguments_of_other_rank(attempt, rank).items():
            spec = attempt.tensors[name]
            # What failed may have an axis more, or less, than the argument that it was computed from.
            wanted = len(spec.shape) + rank - len(operand.shape)
            if 0 <= wanted <= _MAX_RANK and wanted != len(spec.shape):
                for shape in _shapes(attempt, name, wanted, _channel_axis(attempt.failure, rank)):
                    yield attempt.replace(**{name: spec.reshaped(shape)})


def take_shape_from_message(attempt: Attempt) -> Iterator[Proposal]:
    """Take the shape that the message asks for, such as `(B, L, 3)`: its numbers, and usual sizes for its names."""
    for match in _SHAPE.finditer(attempt.failure.words):
        parts = [part.strip() for part in match["parts"].split(",") if part.strip()]
        numbers = [int(part) if part.isdigit() else None for part in parts]
        if len(parts) < 2 or None not in numbers or not any(numbers):
            continue
        for name in attempt.failure.suspects[:2]:
            spec = attempt.tensors.get(name)
            if spec is not None:
                sizes = zip(parts, numbers, (*spec.shape, *(LENGTH,) * len(parts)), strict=False)
                shape = tuple(number or _usual_size(attempt.facts, spec, part, there) for part, number, there in sizes)
                yield attempt.replace(**{name: spec.reshaped(shape)})


def _usual_size(facts: ModelFacts, spec: TensorSpec, word: str, there: int) -> int:
    """The size of an axis that an error has a word for, or what it is now where the word says nothing."""
    word = word.lower()
    if re.match(r"b(?:$|atch|sz)", word):
        return BATCH
    if re.search(r"^(?:c|ch)$|channel", word):
        return channels_of(facts) or 3
    if re.search(r"^(?:h|w)$|height|width", word):
        return spec.shape[-1] if len(spec.shape) > 2 else _SIDE
    return LENGTH if re.search(r"^(?:l|n|s|t)$|seq|len|tokens", word) else there


def _ranks(failure: Failure) -> list[int]:
    """The ranks that the message or the operands of the failed operation ask for."""
    ranks = [int(match["rank"]) for pattern in _RANKS for match in pattern.finditer(failure.words)]
    ranks += [int(match["axis"]) + 1 for pattern in _MISSING_AXES for match in pattern.finditer(failure.words)]
    if issubclass(failure.kind, RuntimeError):
        # The weights of an operation tell the rank of its input, and tensors that are joined have the same rank.
        joined = "number of dimensions" in failure.words
        weights = [len(operand.shape) for operand in failure.operands if joined or not operand.origins]
        ranks += [rank for rank in weights if joined or rank > _RANK_OF_MATRIX]
    return list(dict.fromkeys(rank for rank in ranks if 0 < rank <= _MAX_RANK))


def _arguments_of_other_rank(attempt: Attempt, rank: int) -> dict[str, Operand]:
    """The arguments that tensors of another rank were computed from, each with the first such tensor."""
    found: dict[str, Operand] = {}
    for operand in (*attempt.failure.operands, *attempt.failure.spoken.tensors):
        if len(operand.shape) != rank:
            for name in operand.origins[:2]:
                if name in attempt.tensors:
                    found.setdefault(name, operand)
    return found


def _shapes(attempt: Attempt, name: str, rank: int, channel_axis: int) -> Iterator[tuple[int, ...]]:
    """Shapes of that rank, the likeliest first."""
    spec = attempt.tensors[name]
    batch = spec.shape[0] if spec.shape else BATCH
    width = LENGTH if not spec.shape or (spec.kind is not Kind.FLOATS and rank < 3) else spec.shape[-1]
    if rank <= 2:
        yield (batch, width)[:rank]
        return
    others = [other.shape for key, other in attempt.tensors.items() if key != name and len(other.shape) == rank]
    yield from others[:1]
    channels = channels_of(attempt.facts) or 3
    if rank == 3:
        yield (batch, LENGTH, width)
        if any(isinstance(module, CONVOLUTIONS[0]) for module in attempt.facts.modules):
            yield (batch, channels, 4 * _SIDE)
        return
    side = attempt.facts.sizes("sample_size", "image_size", "input_size")
    largest = 4 * _SIDE if rank == 4 else 2 * _SIDE
    sides = side if side is not None and max(side) <= largest else (_SIDE, _SIDE)
    inner = [*(_FRAMES,) * (rank - 4), *sides]
    place = min(channel_axis, rank - 1)
    yield (batch, *inner[: place - 1], channels, *inner[place - 1 :])
    if rank > 4:
        yield (batch, *inner[:1], channels, *inner[1:])


def _channel_axis(failure: Failure, rank: int) -> int:
    """The axis of the channels: the second, unless the code that unpacks the shape has a name for another."""
    match = _TARGETS.match(failure.spoken.line)
    targets = [target.strip() for target in match["targets"].split(",")] if match is not None else []
    if len(targets) != rank:
        return 1
    return next((place for place, target in enumerate(targets) if place and _CHANNELS.match(target)), 1)


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
    pairs = [(found, wanted) for found in reversed(own) for wanted in likely if found and wanted > 1]
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
            others = [size for n, other in enumerate(failure.operands) if n != place for size in reversed(other.shape)]
            theirs = [size for size in dict.fromkeys(others) if size in attempt.numbers]
            for found, once in zip(operand.shape, before.failure.operands[place].shape, strict=True):
                for wanted in theirs if found != once else ():
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
