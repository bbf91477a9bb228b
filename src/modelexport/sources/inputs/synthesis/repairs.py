"""A call that failed to the calls worth trying next, by what its error and the module that was running say."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from modelexport.sources.inputs.synthesis.initial_guess import BATCH, LENGTH, propose, words
from modelexport.sources.inputs.synthesis.missing_arguments import (
    absent_arguments,
    fitting,
    mentioned_arguments,
    one_more,
)
from modelexport.sources.inputs.synthesis.model_facts import ModelFacts
from modelexport.sources.inputs.synthesis.module_repairs import by_module, by_said_type, resized
from modelexport.sources.inputs.synthesis.operand_repairs import by_operands, by_view, by_what_changed, probes
from modelexport.sources.inputs.synthesis.rank_repairs import by_bounds, by_rank, by_said_shape
from modelexport.sources.inputs.synthesis.tensor_spec import Kind, Proposal, TensorSpec, tensors
from modelexport.sources.inputs.synthesis.trial_call import Failure

_MISSING = re.compile(r"missing \d+ required [\w-]+ arguments?: (?P<names>.+)")
_NUMBER = re.compile(r"(?<![\w.])\d{1,9}(?![\w.]*\w)")
_BY = re.compile(r"[x*]")
_SMALL = re.compile(r"too small|can't be greater than actual input|smaller than|should be less than")
_MOST_NUMBERS = 8
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
        added = {name: fitting(propose(facts, name)[0], proposal) for name in names if name not in proposal}
        if added:
            yield 0, {**proposal, **added}
            return
    # What is None and should not be was not given.
    if "None" in failure.words:
        yield from ((0, changed) for changed in absent_arguments(facts, proposal, failure))
        yield from ((0, changed) for changed in mentioned_arguments(facts, proposal, failure))
    yield from ((1, changed) for changed in by_module(proposal, failure))
    yield from ((1, changed) for changed in by_said_type(proposal, failure))
    yield from ((1, changed) for changed in by_said_shape(facts, proposal, failure))
    yield from ((1, changed) for changed in by_bounds(proposal, failure))
    yield from ((1, changed) for changed in by_rank(facts, proposal, failure))
    yield from ((1, changed) for changed in _enlarged(proposal, failure))
    yield from ((1, changed) for changed in by_view(proposal, failure))
    yield from ((1, changed) for changed in by_operands(proposal, failure, _numbers(failure)))
    yield from ((1, changed) for changed in _placeholders(facts, proposal, failure))
    yield from ((1, changed) for changed in mentioned_arguments(facts, proposal, failure))
    yield from ((2, changed) for changed in _by_numbers(proposal, failure))
    yield from ((2, changed) for changed in probes(proposal, failure))
    yield from ((3, changed) for changed in _other_shapes(facts, proposal))
    yield from ((3, changed) for changed in _by_what_became_of_sizes(proposal, failure))
    yield from ((3, changed) for changed in _other_ranks(proposal))
    yield from ((4, changed) for changed in _other_sizes(proposal))
    yield from ((4, changed) for changed in one_more(facts, proposal))


def _by_numbers(proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
    """With a number of the error's words where another of them is a size that was given, or for a number."""
    numbers = _numbers(failure)
    given = {size for _, spec in tensors(proposal) for size in spec.shape}
    for size in numbers:
        if size in given and size != BATCH:
            for wanted in numbers:
                if wanted != size and wanted > 1:
                    yield from resized(proposal, size, wanted)
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
                yield from resized(proposal, size, size * wanted // found)
        for size in sorted(sizes):
            if size < found and abs(wanted - found) <= LENGTH:
                yield from resized(proposal, size, size + wanted - found)


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
