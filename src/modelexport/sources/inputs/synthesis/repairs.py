"""The rules that repair a call which failed: each one proposes other arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator

from modelexport.sources.inputs.synthesis.attempt import Attempt
from modelexport.sources.inputs.synthesis.initial_guess import LENGTH
from modelexport.sources.inputs.synthesis.missing_arguments import (
    add_any_argument,
    add_named_arguments,
)
from modelexport.sources.inputs.synthesis.module_repairs import (
    change_kind_for_module,
    change_size_for_module,
    flatten_for_module,
    scale_for_module,
)
from modelexport.sources.inputs.synthesis.shape_repairs import (
    change_rank,
    extrapolate_size,
    match_operands,
    probe_sizes,
    take_shape_from_message,
    take_size_from_message,
)
from modelexport.sources.inputs.synthesis.tensor_spec import Kind, Proposal

_OTHER_LENGTHS = (8, 16, 64, 128, 1)


def take_number_from_message(attempt: Attempt) -> Iterator[Proposal]:
    """Replace an argument that is a number by a number of the message."""
    for name, value in attempt.proposal.items():
        if type(value) is int:
            yield from (attempt.replace(**{name: number}) for number in attempt.numbers if number != value)


def change_kind_for_index(attempt: Attempt) -> Iterator[Proposal]:
    """Give bools or tokens where the operation wants indices and got floats."""
    floats = [operand for operand in attempt.failure.operands if operand.dtype.is_floating_point]
    for name in dict.fromkeys(name for operand in floats for name in operand.origins):
        if name in attempt.tensors and "indices must" in attempt.failure.words:
            for kind in (Kind.BOOLS, Kind.TOKENS):
                yield attempt.replace(**{name: dataclasses.replace(attempt.tensors[name], kind=kind)})


def insert_length_axis(attempt: Attempt) -> Iterator[Proposal]:
    """Make a sequence of an argument that is one row of floats per batch element."""
    for name, spec in attempt.tensors.items():
        if spec.kind is Kind.FLOATS and len(spec.shape) == 2:
            yield attempt.replace(**{name: spec.reshaped((spec.shape[0], LENGTH, spec.shape[1]))})


def change_length(attempt: Attempt) -> Iterator[Proposal]:
    """Try other lengths of sequences."""
    for length in _OTHER_LENGTHS:
        yield attempt.replace(
            **{
                name: spec.resized({axis: length for axis, size in enumerate(spec.shape) if size == LENGTH})
                for name, spec in attempt.tensors.items()
            }
        )


# In the order in which they are applied. The number is the distance of a proposal from the one that failed: 0 is what
# the error asks for, 4 what nothing suggests. Every rule has found inputs for a model of the sweep or for a module of
# the tests: see docs/decisions/014-synthesis-rules-that-earn-their-lines.md before adding one.
REPAIRS: tuple[tuple[int, Callable[[Attempt], Iterator[Proposal]]], ...] = (
    (0, extrapolate_size),
    (1, change_kind_for_module),
    (1, change_kind_for_index),
    (1, flatten_for_module),
    (1, change_size_for_module),
    (1, scale_for_module),
    (1, take_shape_from_message),
    (1, change_rank),
    (1, match_operands),
    (1, add_named_arguments),
    (2, take_size_from_message),
    (2, take_number_from_message),
    (2, probe_sizes),
    (3, insert_length_axis),
    (4, change_length),
    (4, add_any_argument),
)


def repairs(attempt: Attempt, without: Collection[str] = ()) -> Iterator[tuple[str, int, Proposal]]:
    """Proposals to try next, each with the name of its rule and its distance from the proposal that failed.

    Where it is known which arguments went into what failed, changing another one is a step farther.
    """
    suspects = set(attempt.failure.suspects)
    for distance, rule in REPAIRS:
        for changed in rule(attempt) if rule.__name__ not in without else ():
            touched = {name for name, value in attempt.proposal.items() if changed.get(name) is not value}
            yield rule.__name__, distance + (bool(suspects) and not touched <= suspects), changed
