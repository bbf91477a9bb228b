"""A call that failed to the calls worth trying next, by what its error and the module that was running say."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from modelexport.sources.made_inputs_facts import CONVOLUTIONS, TABLES, ModelFacts
from modelexport.sources.made_inputs_operands import by_operands, by_what_changed, probes
from modelexport.sources.made_inputs_proposals import BATCH, LENGTH, propose, takes_input, words
from modelexport.sources.made_inputs_ranks import by_rank, by_said_shape
from modelexport.sources.made_inputs_specs import Kind, Proposal, TensorSpec, tensors
from modelexport.sources.made_inputs_trial import Failure

_MISSING = re.compile(r"missing \d+ required [\w-]+ arguments?: (?P<names>.+)")
_NUMBER = re.compile(r"(?<![\w.])\d{1,9}(?![\w.]*\w)")
_BY = re.compile(r"[x*]")
_SMALL = re.compile(r"too small|can't be greater than actual input|smaller than|should be less than")
_SIDE = 16
_MOST_NUMBERS = 8
_MOST_MENTIONED = 4
# Words for a type that an operation of torch misses.
_TYPES = ((Kind.TRUTH, ("bool",)), (Kind.NUMBERS, ("dtype", "float", "scalar type")))
_SHAPED = (ValueError, RuntimeError, IndexError, AssertionError, TypeError)
_MOST_SENSIBLE_SIZE = 1 << 14
_OTHER_LENGTHS = (8, 16, 64, 128, 1)


def repairs(
    facts: ModelFacts, proposal: Proposal, failure: Failure, earlier: Sequence[tuple[Proposal, Failure]] = ()
) -> Iterator[tuple[int, Proposal]]:
    """Proposals to try next, each with how far it is from the one that failed: 0 is what the error asks for.

    Where it is known which arguments went into what failed, changing another is a step farther.
    """
    suspects = {*failure.suspects}
    yield from ((0, changed) for changed in by_what_changed(proposal, failure, earlier, _numbers(failure)))
    for step, changed in _repairs(facts, proposal, failure):
        touched = {name for name, value in proposal.items() if changed.get(name) is not value}
        yield (step if not suspects or touched <= suspects else step + 1), changed


def _repairs(facts: ModelFacts, proposal: Proposal, failure: Failure) -> Iterator[tuple[int, Proposal]]:
    missing = _MISSING.search(failure.words) if issubclass(failure.kind, TypeError) else None
    if missing is not None:
        names = [name for name in re.findall(r"'(\w+)'", missing["names"]) if name in facts.parameters]
        added = {name: _fitting(propose(facts, name)[0], proposal) for name in names if name not in proposal}
        if added:
            yield 0, {**proposal, **added}
            return
    # What is None and should not be was not given.
    if "None" in failure.words:
        yield from ((0, changed) for changed in _absent(facts, proposal, failure))
        yield from ((0, changed) for changed in _mentioned(facts, proposal, failure))
    yield from ((1, changed) for changed in _by_module(proposal, failure))
    yield from ((1, changed) for changed in _by_said_type(proposal, failure))
    yield from ((1, changed) for changed in by_said_shape(proposal, failure))
    yield from ((1, changed) for changed in by_rank(facts, proposal, failure))
    yield from ((1, changed) for changed in _enlarged(proposal, failure))
    yield from ((1, changed) for changed in by_operands(proposal, failure, _numbers(failure)))
    yield from ((1, changed) for changed in _placeholders(facts, proposal, failure))
    yield from ((1, changed) for changed in _mentioned(facts, proposal, failure))
    yield from ((2, changed) for changed in _by_numbers(proposal, failure))
    yield from ((2, changed) for changed in probes(proposal, failure))
    yield from ((3, changed) for changed in _other_shapes(facts, proposal))
    yield from ((3, changed) for changed in _by_what_became_of_sizes(proposal, failure))
    yield from ((3, changed) for changed in _other_ranks(proposal))
    yield from ((4, changed) for changed in _other_sizes(proposal))
    yield from ((4, changed) for changed in _with_one_more(facts, proposal))


def _mentioned(facts: ModelFacts, proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
    """With the first arguments added that the error or the code speaks of and that were not given."""
    seen: set[str] = set()
    for name in failure.names:
        parameter = facts.parameters.get(name)
        if parameter is None or name in proposal or name in seen:
            continue
        if not takes_input(parameter):
            continue
        seen.add(name)
        for spec in (*_missing_input(failure), *propose(facts, name)[:1]):
            # Options by name are asked for in words of their own.
            if spec != {} or "mapping" in failure.words:
                yield {**proposal, name: _fitting(spec, proposal)}
        if len(seen) == _MOST_MENTIONED:
            return


def _absent(facts: ModelFacts, proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
    """With what was nothing in the line of code that failed, and with all that was nothing on the way there."""
    added: Proposal = {}
    for name in failure.absent:
        parameter = facts.parameters.get(name)
        if parameter is not None and name not in proposal and takes_input(parameter):
            spec = next(iter((*_missing_input(failure), *propose(facts, name))))
            if spec != {}:
                added[name] = _fitting(spec, proposal)
    if added:
        first = next(iter(added))
        yield {**proposal, first: added[first]}
    if len(added) > 1:
        yield {**proposal, **added}


def _missing_input(failure: Failure) -> Iterator[TensorSpec]:
    """What the module that was running takes, where it was given nothing."""
    if failure.given:
        return
    if isinstance(failure.module, TABLES):
        yield TensorSpec((BATCH, LENGTH), Kind.TOKENS, failure.module.num_embeddings)
    elif isinstance(failure.module, torch.nn.Linear):
        yield TensorSpec((BATCH, LENGTH, failure.module.in_features))
    elif isinstance(failure.module, CONVOLUTIONS):
        inner = (_SIDE,) * (failure.module.weight.dim() - 2)
        yield TensorSpec((BATCH, failure.module.in_channels, *inner))


def _with_one_more(facts: ModelFacts, proposal: Proposal) -> Iterator[Proposal]:
    """With an argument that may be left out, as far as the signature goes, and nobody spoke of."""
    for name, parameter in facts.parameters.items():
        if name not in proposal and takes_input(parameter):
            yield from ({**proposal, name: _fitting(spec, proposal)} for spec in propose(facts, name)[:2])


def _fitting(spec: Any, proposal: Proposal) -> Any:
    """What is proposed with the batch and the length of what is there already."""
    if not isinstance(spec, TensorSpec) or spec.rows:
        return spec
    there = [value for value in proposal.values() if isinstance(value, TensorSpec | torch.Tensor)]
    # A length is that of tokens and masks: the second axis of numbers is their width.
    long = [value.shape[1] for value in there if len(value.shape) == 2 and not _holds_numbers(value)]
    usual = {BATCH: [value.shape[0] for value in there if value.shape], LENGTH: long}
    axes = {}
    for axis, size in enumerate(spec.shape):
        if axis < 2 and usual.get(size):
            axes[axis] = usual[size][0]
    return spec.resized(axes)


def _holds_numbers(value: TensorSpec | torch.Tensor) -> bool:
    return value.kind is Kind.NUMBERS if isinstance(value, TensorSpec) else value.is_floating_point()


def _by_module(proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
    """With what the module wants that was running when it failed."""
    module = failure.module
    if module is None or not failure.given:
        return
    shape, dtype = failure.given[0]
    if isinstance(module, TABLES):
        if dtype.is_floating_point:
            yield from _retyped(proposal, shape, Kind.TOKENS, module.num_embeddings)
        else:
            yield from _lowered(proposal, module.num_embeddings)
        return
    if not dtype.is_floating_point:
        yield from _retyped(proposal, shape, Kind.NUMBERS, 2)
    wanted = _wanted(module)
    if wanted is None:
        return
    axis, size, rank = wanted
    if rank is not None and len(shape) != rank:
        yield from _reranked(proposal, shape, rank, size)
        return
    if shape and -len(shape) <= axis < len(shape) and shape[axis] != size:
        straight = _straight(proposal, failure, shape)
        if straight is not None and rank is None and len(shape) < 4:
            yield {**proposal, straight: proposal[straight].resized({axis % len(shape): size})}
            return
        if rank is None and len(shape) > 3:
            yield from _flattened(proposal, shape, size)
        yield from _resized(proposal, shape[axis], size)
        yield from _scaled(proposal, size / shape[axis])


def _straight(proposal: Proposal, failure: Failure, shape: tuple[int, ...]) -> str | None:
    """The argument that a module was given as it is."""
    operand = failure.operands[0] if failure.operands else None
    if operand is None or len(operand.origins) != 1 or operand.shape != shape:
        return None
    spec = dict(tensors(proposal)).get(operand.origins[0])
    return operand.origins[0] if spec is not None and spec.shape == shape else None


def _wanted(module: torch.nn.Module) -> tuple[int, int, int | None] | None:
    """The axis of its input whose size a module fixes, that size, and the rank of the input where it is fixed too."""
    if isinstance(module, CONVOLUTIONS):
        return 1, module.in_channels, module.weight.dim()
    if isinstance(module, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d | torch.nn.BatchNorm3d):
        return 1, module.num_features, None
    if isinstance(module, torch.nn.Linear):
        return -1, module.in_features, None
    if isinstance(module, torch.nn.RNNBase):
        return -1, module.input_size, None
    weight = getattr(module, "weight", None)
    if isinstance(weight, torch.Tensor) and weight.dim() == 1:
        return -1, weight.shape[0], None
    return None


def _retyped(proposal: Proposal, shape: tuple[int, ...], kind: Kind, below: int) -> Iterator[Proposal]:
    others = [(name, spec) for name, spec in tensors(proposal) if spec.kind is not kind]
    for name, spec in sorted(others, key=lambda item: item[1].shape != shape):
        yield {**proposal, name: dataclasses.replace(spec, kind=kind, below=below)}


def _by_said_type(proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
    """With another type where the error speaks of types: truth where it asks for it, or numbers."""
    said = failure.words.lower()
    kinds = [kind for kind, wanted in _TYPES if any(word in said for word in wanted)]
    is_index = "indices must" in said
    kinds = [Kind.TRUTH, Kind.TOKENS] if is_index else kinds
    wrong = [operand for operand in failure.operands if operand.dtype.is_floating_point is is_index]
    for name in dict.fromkeys(name for operand in wrong for name in operand.origins):
        spec = proposal.get(name)
        if isinstance(spec, TensorSpec) and not spec.rows:
            yield from (
                {**proposal, name: dataclasses.replace(spec, kind=kind)} for kind in kinds if kind is not spec.kind
            )


def _lowered(proposal: Proposal, below: int) -> Iterator[Proposal]:
    """With smaller numbers, or fewer of them where a position is looked up."""
    high = [(name, spec) for name, spec in tensors(proposal) if spec.kind is Kind.TOKENS and spec.below > below]
    if high:
        yield {**proposal, **{name: dataclasses.replace(spec, below=below) for name, spec in high}}
    ones = [(name, spec) for name, spec in tensors(proposal) if spec.kind is Kind.ONES]
    for name, spec in ones:
        yield {**proposal, name: dataclasses.replace(spec, kind=Kind.TOKENS, below=1)}
    long = {
        name: spec.resized({axis: below for axis, size in enumerate(spec.shape) if axis and size > below})
        for name, spec in tensors(proposal)
    }
    yield {**proposal, **long}


def _reranked(proposal: Proposal, shape: tuple[int, ...], rank: int, channels: int) -> Iterator[Proposal]:
    for name, spec in tensors(proposal):
        if not spec.shape or (spec.shape != shape and len(spec.shape) == rank):
            continue
        wanted = (spec.shape[0], channels, *(spec.shape[-1],) * (rank - 2))
        yield {**proposal, name: dataclasses.replace(spec, shape=wanted)}
        if len(spec.shape) > 1:
            yield {**proposal, name: dataclasses.replace(spec, shape=(*spec.shape[:1], *spec.shape[2:]))}


def _flattened(proposal: Proposal, shape: tuple[int, ...], size: int) -> Iterator[Proposal]:
    """With fewer axes where an argument goes straight to a module that takes any number of them."""
    for name, spec in tensors(proposal):
        if spec.shape == shape:
            for wanted in ((shape[0], size), (shape[0], LENGTH, size)):
                yield {**proposal, name: dataclasses.replace(spec, shape=wanted)}


def _resized(proposal: Proposal, size: int, wanted: int) -> Iterator[Proposal]:
    """With `wanted` where `size` was: on all such axes of a tensor, of all tensors, then on one axis at a time."""
    if not 0 < wanted <= _MOST_SENSIBLE_SIZE:
        return
    changed = {}
    for name, spec in tensors(proposal):
        axes = [axis for axis, given in enumerate(spec.shape) if given == size and (axis or len(spec.shape) == 1)]
        if axes:
            changed[name] = spec.resized(dict.fromkeys(axes, wanted))
            yield {**proposal, name: changed[name]}
    if len(changed) > 1:
        yield {**proposal, **changed}
    for name, spec in tensors(proposal):
        axes = [axis for axis, given in enumerate(spec.shape) if given == size]
        if len(axes) > 1:
            for axis in reversed(axes):
                yield {**proposal, name: spec.resized({axis: wanted})}


def _scaled(proposal: Proposal, ratio: float) -> Iterator[Proposal]:
    """With the inner axes of a tensor scaled: a module that sees them flattened wants `ratio` times as much."""
    for name, spec in tensors(proposal):
        inner = len(spec.shape) - 2
        if inner < 1 or spec.kind is not Kind.NUMBERS:
            continue
        factor = ratio ** (1 / inner)
        for nudge in (0, 1, -1, 2, -2, 3, 4):
            axes = {axis: round(spec.shape[axis] * factor) + nudge for axis in range(2, len(spec.shape))}
            yield {**proposal, name: spec.resized(axes)}


def _by_numbers(proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
    """With a number of the error's words where another of them is a size that was given, or for a number."""
    numbers = _numbers(failure)
    given = {size for _, spec in tensors(proposal) for size in spec.shape}
    for size in numbers:
        if size in given and size != BATCH:
            for wanted in numbers:
                if wanted != size and wanted > 1:
                    yield from _resized(proposal, size, wanted)
    for name, value in proposal.items():
        if type(value) is int:
            yield from ({**proposal, name: number} for number in numbers if number != value)


def _by_what_became_of_sizes(proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
    """With sizes changed as two numbers of the error's words differ: by their ratio, or by their difference."""
    numbers = _numbers(failure)
    sizes = {size for _, spec in tensors(proposal) for size in spec.shape[1:] if size > 1}
    for found, wanted in itertools.permutations([number for number in numbers if number > 1][:3], 2):
        for size in sorted(sizes, reverse=True):
            if size > found and size % found == 0 and size * wanted % found == 0:
                yield from _resized(proposal, size, size * wanted // found)
        for size in sorted(sizes):
            if size < found and abs(wanted - found) <= LENGTH:
                yield from _resized(proposal, size, size + wanted - found)


def _numbers(failure: Failure) -> list[int]:
    if not issubclass(failure.kind, _SHAPED):
        return []
    found = _NUMBER.findall(_BY.sub(" ", failure.words))
    return list(dict.fromkeys(int(text) for text in found))[:_MOST_NUMBERS]


def _placeholders(facts: ModelFacts, proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
    """With as many tokens that stand for other inputs as there are features to put in their place."""
    text = failure.words
    if "token" not in text.lower():
        return
    counted = sorted({int(number) for number in re.findall(r"\d+", text) if 0 < int(number) <= _MOST_SENSIBLE_SIZE})
    # What is counted may be features, or all the numbers in them.
    whole = [count // width for width in facts.numbers("hidden_size") for count in counted if count % width == 0]
    counts = list(dict.fromkeys([*reversed(counted), *(count for count in reversed(whole) if count)]))
    said = set(words(text))
    special = facts.special_tokens()
    likely = sorted(special, key=lambda name: -len(said & (set(words(name)) - {"token", "id", "index"})))
    for name, spec in tensors(proposal):
        if spec.kind is not Kind.TOKENS or len(spec.shape) != 2 or words(name)[-1] != "ids":
            continue
        for count in counts:
            for token in likely[:3]:
                if count % spec.shape[0] == 0:
                    yield {**proposal, **_with_placeholders(proposal, name, special[token], count // spec.shape[0])}


def _with_placeholders(proposal: Proposal, name: str, token: int, count: int) -> Proposal:
    spec: TensorSpec = proposal[name]
    kept = tuple(pair for pair in spec.placeholders if pair[0] != token)
    length = 2 + count + sum(number for _, number in kept)
    changed: Proposal = {}
    for other, tensor in tensors(proposal):
        if len(tensor.shape) == 2 and tensor.shape == spec.shape:
            changed[other] = tensor.resized({1: length})
    changed[name] = dataclasses.replace(changed[name], placeholders=(*kept, (token, count)))
    return changed


def _enlarged(proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
    """With larger inner axes, where the error says that something is too small."""
    if not _SMALL.search(failure.words):
        return
    for name, spec in tensors(proposal):
        if name in failure.suspects and spec.kind is Kind.NUMBERS and len(spec.shape) > 2:
            inner = range(2, len(spec.shape))
            yield from ({**proposal, name: spec.resized({a: n * spec.shape[a] for a in inner})} for n in (2, 4, 16))


def _other_shapes(facts: ModelFacts, proposal: Proposal) -> Iterator[Proposal]:
    for name, spec in proposal.items():
        if not isinstance(spec, torch.Tensor) and name in facts.parameters:
            yield from ({**proposal, name: option} for option in propose(facts, name)[1:] if option != spec)


def _other_ranks(proposal: Proposal) -> Iterator[Proposal]:
    """With an axis less."""
    for name, spec in tensors(proposal):
        if spec.kind is Kind.NUMBERS and len(spec.shape) > 2:
            yield {**proposal, name: dataclasses.replace(spec, shape=spec.shape[:-1])}
            yield {**proposal, name: dataclasses.replace(spec, shape=(spec.shape[0], *spec.shape[2:]))}


def _other_sizes(proposal: Proposal) -> Iterator[Proposal]:
    """With other lengths, larger inner axes, or a batch of one."""
    for length in _OTHER_LENGTHS:
        changed = {
            name: spec.resized({axis: length for axis, size in enumerate(spec.shape) if size == LENGTH})
            for name, spec in tensors(proposal)
        }
        yield {**proposal, **changed}
    for name, spec in tensors(proposal):
        if spec.kind is Kind.NUMBERS and len(spec.shape) > 2:
            inner = range(2, len(spec.shape))
            yield {**proposal, name: spec.resized({axis: 2 * spec.shape[axis] for axis in inner})}
            yield {**proposal, name: spec.resized({axis: spec.shape[axis] // 4 for axis in inner})}
    single: dict[str, Any] = {
        name: spec.resized({0: 1}) for name, spec in tensors(proposal) if spec.shape and spec.shape[0] == BATCH
    }
    yield {**proposal, **single}
