"""How many axes an argument has to have, as an error or the line of code that failed says it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from modelexport.sources.inputs.synthesis.initial_guess import BATCH, LENGTH, channels_of
from modelexport.sources.inputs.synthesis.model_facts import CONVOLUTIONS, ModelFacts
from modelexport.sources.inputs.synthesis.provenance import Operand
from modelexport.sources.inputs.synthesis.tensor_spec import Kind, Proposal, TensorSpec, tensors
from modelexport.sources.inputs.synthesis.trial_call import Failure

_FRAMES = 5
_SIDE = 16
_MOST_AXES = 6
# A matrix multiplies what has any number of axes.
_FEWEST_OF_WEIGHTS = 2
# Words for a number of axes; what the code takes apart or puts in another order has as many.
_SAID = (
    re.compile(r"values to unpack \(expected (?P<rank>\d)\b"),
    re.compile(r"len\(dims\) = (?P<rank>\d)\b"),
    re.compile(r"(?P<rank>\d)D \(batched\)"),
    re.compile(r"number of sizes provided \((?P<rank>\d)\)"),
    re.compile(r"\b(?P<rank>\d)-?[dD]\b"),
    re.compile(r"\b(?P<rank>\d) dim(?:ension)?s?\b"),
)
_AT_LEAST = (
    re.compile(r"expected to be in range of \[-?\d+, -?\d+\], but got (?P<axis>\d)"),
    re.compile(r"too many indices for tensor of dimension (?P<axis>\d)"),
)
_SHAPE = re.compile(r"[\[(](?P<parts>[\w\s]+(?:,[\w\s]+)+)[\])]")
_BOUNDS = re.compile(r"index (?P<place>\d+) is out of bounds for dimension (?P<axis>\d) with size")
_INDEXED = re.compile(r"(?:shape\[|size\()(?P<axis>\d)")
_TARGETS = re.compile(r"^\s*\(?(?P<targets>[\w\s,*]+?)\)?\s*=[^=]")
_CHANNELS = re.compile(r"^(?:c|ch|.*channels?.*|.*_dim)$", re.IGNORECASE)


def by_rank(facts: ModelFacts, proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
    """With as many axes as the error, or the code that failed, says there have to be."""
    for rank in _ranks(failure):
        for name, found in _blamed(proposal, failure, rank):
            spec = proposal[name]
            # What failed may have an axis more, or less, than the argument it is made of.
            wanted = len(spec.shape) + rank - len(found.shape)
            if 0 <= wanted <= _MOST_AXES and wanted != len(spec.shape):
                for shape in _shapes(facts, proposal, name, wanted, _channel_axis(failure, rank)):
                    yield {**proposal, name: dataclasses.replace(spec, shape=shape)}


def by_said_shape(facts: ModelFacts, proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
    """With the shape that the error asks for: numbers where it has numbers, what there is where it has names."""
    for match in _SHAPE.finditer(failure.words):
        parts = [part.strip() for part in match["parts"].split(",") if part.strip()]
        numbers = [int(part) if part.isdigit() else None for part in parts]
        if len(parts) < 2 or None not in numbers or not any(numbers):
            continue
        for name in failure.suspects[:2]:
            spec = proposal.get(name)
            if isinstance(spec, TensorSpec) and not spec.rows:
                sizes = zip(parts, numbers, (*spec.shape, *(LENGTH,) * len(parts)), strict=False)
                shape = tuple(number or _usual_size(facts, spec, part, there) for part, number, there in sizes)
                yield {**proposal, name: dataclasses.replace(spec, shape=shape)}


def by_bounds(proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
    """With a size, or an axis at the end, that has the place which the code asked for."""
    match = _BOUNDS.search(failure.words)
    if match is None:
        return
    axis, size = int(match["axis"]), int(match["place"]) + 1
    for name in failure.suspects[:2]:
        spec = proposal.get(name)
        if isinstance(spec, TensorSpec) and not spec.rows and axis <= len(spec.shape):
            yield {
                **proposal,
                name: dataclasses.replace(spec, shape=(*spec.shape[:axis], size, *spec.shape[axis + 1 :])),
            }


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
    said = [int(match["rank"]) for pattern in _SAID for match in pattern.finditer(failure.words)]
    said += [int(match["axis"]) + 1 for pattern in _AT_LEAST for match in pattern.finditer(failure.words)]
    if issubclass(failure.kind, IndexError):
        said += [int(match["axis"]) + 1 for match in _INDEXED.finditer(failure.spoken.line)]
    # The weights of an operation that failed tell how many axes it works on, and what it joins has as many each.
    if issubclass(failure.kind, RuntimeError):
        fixed = [len(operand.shape) for operand in failure.operands if not operand.origins]
        said += [rank for rank in fixed if rank > _FEWEST_OF_WEIGHTS]
        if "number of dimensions" in failure.words:
            said += [len(operand.shape) for operand in failure.operands]
    return list(dict.fromkeys(rank for rank in said if 0 < rank <= _MOST_AXES))


def _blamed(proposal: Proposal, failure: Failure, rank: int) -> Iterator[tuple[str, Operand]]:
    """The arguments that a tensor of another rank is made of."""
    named = dict(tensors(proposal))
    seen = set()
    for operand in (*failure.operands, *failure.spoken.tensors):
        if len(operand.shape) != rank:
            for name in operand.origins[:2]:
                if name in named and name not in seen:
                    seen.add(name)
                    yield name, operand


def _shapes(
    facts: ModelFacts, proposal: Proposal, name: str, rank: int, channel_axis: int
) -> Iterator[tuple[int, ...]]:
    """Shapes with so many axes, the likeliest first."""
    spec: TensorSpec = proposal[name]
    batch = spec.shape[0] if spec.shape else BATCH
    others = [other.shape for key, other in tensors(proposal) if key != name and len(other.shape) == rank]
    if spec.kind is not Kind.NUMBERS and rank < 3:
        yield (batch, LENGTH)[:rank]
        return
    width = spec.shape[-1] if spec.shape else LENGTH
    if rank <= 2:
        yield (batch, width)[:rank]
        return
    if others:
        yield others[0]
    channels = channels_of(facts) or 3
    if rank == 3:
        yield (batch, LENGTH, width)
        if any(isinstance(module, CONVOLUTIONS[0]) for module in facts.modules):
            yield (batch, channels, 64)
        return
    side = facts.sizes("sample_size", "image_size", "input_size")
    largest = 4 * _SIDE if rank == 4 else 2 * _SIDE
    sides = side if side is not None and max(side) <= largest else (_SIDE, _SIDE)
    inner = [*(_FRAMES,) * (rank - 4), *sides]
    place = min(channel_axis, rank - 1)
    yield (batch, *inner[: place - 1], channels, *inner[place - 1 :])
    if rank > 4:
        yield (batch, *inner[:1], channels, *inner[1:])


def _channel_axis(failure: Failure, rank: int) -> int:
    """The axis of the channels: the second, unless the code that takes the shape apart has a name for another."""
    match = _TARGETS.match(failure.spoken.line)
    targets = [target.strip() for target in match["targets"].split(",")] if match is not None else []
    if len(targets) != rank:
        return 1
    return next((place for place, target in enumerate(targets) if place and _CHANNELS.match(target)), 1)
