"""Repairs of the number of axes of an argument, by what the error or the line of code that failed says."""

from __future__ import annotations

import re
from collections.abc import Iterator

from modelexport.sources.inputs.synthesis.attempt import Attempt
from modelexport.sources.inputs.synthesis.initial_guess import BATCH, LENGTH, channels_of
from modelexport.sources.inputs.synthesis.model_facts import CONVOLUTIONS, ModelFacts
from modelexport.sources.inputs.synthesis.provenance import Operand
from modelexport.sources.inputs.synthesis.tensor_spec import Kind, Proposal, TensorSpec
from modelexport.sources.inputs.synthesis.trial_call import Failure

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
    re.compile(r"\b(?P<rank>\d)-?[dD]\b"),
)
_OUT_OF_RANGE = re.compile(r"expected to be in range of \[-?\d+, -?\d+\], but got (?P<axis>\d)")
_SHAPE = re.compile(r"[\[(](?P<parts>[\w\s]+(?:,[\w\s]+)+)[\])]")
_TARGETS = re.compile(r"^\s*\(?(?P<targets>[\w\s,*]+?)\)?\s*=[^=]")
_CHANNELS = re.compile(r"^(?:c|ch|.*channels?.*|.*_dim)$", re.IGNORECASE)


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
    ranks += [int(match["axis"]) + 1 for match in _OUT_OF_RANGE.finditer(failure.words)]
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
