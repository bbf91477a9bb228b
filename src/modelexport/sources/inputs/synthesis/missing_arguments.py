"""Repairs that add an argument: one that the error or the code names, or any that forward accepts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from modelexport.sources.inputs.synthesis.attempt import Attempt
from modelexport.sources.inputs.synthesis.initial_guess import (
    BATCH,
    LENGTH,
    guess,
    may_be_input,
    shape_for_convolution,
)
from modelexport.sources.inputs.synthesis.model_facts import CONVOLUTIONS, EMBEDDINGS
from modelexport.sources.inputs.synthesis.tensor_spec import Kind, Proposal, TensorSpec
from modelexport.sources.inputs.synthesis.trial_call import Failure

_MAX_NAMED = 4


def add_named_arguments(attempt: Attempt) -> Iterator[Proposal]:
    """Add one of the arguments that the error or the code names and that were not given."""
    for name in _addable(attempt, attempt.failure.names)[:_MAX_NAMED]:
        for spec in (*_input_of_module(attempt.failure), guess(attempt.facts, name)):
            yield attempt.replace(**{name: _fit(spec, attempt.proposal)})


def add_any_argument(attempt: Attempt) -> Iterator[Proposal]:
    """Add an argument that nothing refers to."""
    for name in _addable(attempt, attempt.facts.parameters):
        yield attempt.replace(**{name: _fit(guess(attempt.facts, name), attempt.proposal)})


def _addable(attempt: Attempt, names: Iterable[str]) -> list[str]:
    """Those of the names that are arguments which may be inputs and are not given yet."""
    parameters = attempt.facts.parameters
    known = [name for name in dict.fromkeys(names) if name in parameters and name not in attempt.proposal]
    return [name for name in known if may_be_input(parameters[name])]


def _input_of_module(failure: Failure) -> Iterator[TensorSpec]:
    """The input of the module that was running, where it got none."""
    if failure.given:
        return
    if isinstance(failure.module, EMBEDDINGS):
        yield TensorSpec((BATCH, LENGTH), Kind.TOKENS, failure.module.num_embeddings, rule="input_of_embedding")
    elif isinstance(failure.module, torch.nn.Linear):
        yield TensorSpec((BATCH, LENGTH, failure.module.in_features), rule="input_of_linear")
    elif isinstance(failure.module, CONVOLUTIONS):
        yield TensorSpec(shape_for_convolution(failure.module), rule="input_of_convolution")


def _fit(spec: Any, proposal: Proposal) -> Any:
    """Give a guess the batch size and the length of the arguments that are there already."""
    if not isinstance(spec, TensorSpec) or spec.rows:
        return spec
    there = [value for value in proposal.values() if isinstance(value, TensorSpec | torch.Tensor)]
    # A length is that of tokens and masks: the second axis of floats is their width.
    lengths = [value.shape[1] for value in there if len(value.shape) == 2 and not _is_floating_point(value)]
    usual = {BATCH: [value.shape[0] for value in there if value.shape], LENGTH: lengths}
    axes = {axis: usual[size][0] for axis, size in enumerate(spec.shape[:2]) if usual.get(size)}
    return spec.resized(axes)


def _is_floating_point(value: TensorSpec | torch.Tensor) -> bool:
    return value.kind is Kind.FLOATS if isinstance(value, TensorSpec) else value.is_floating_point()
