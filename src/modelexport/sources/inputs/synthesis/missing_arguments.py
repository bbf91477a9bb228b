"""Arguments to add to a call that failed: those that the error or the code speaks of, and what they may be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from modelexport.sources.inputs.synthesis.initial_guess import BATCH, LENGTH, propose, takes_input
from modelexport.sources.inputs.synthesis.model_facts import CONVOLUTIONS, TABLES, ModelFacts
from modelexport.sources.inputs.synthesis.tensor_spec import Kind, Proposal, TensorSpec
from modelexport.sources.inputs.synthesis.trial_call import Failure

_MOST_MENTIONED = 4
_SIDE = 16


def mentioned_arguments(facts: ModelFacts, proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
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
                yield {**proposal, name: fitting(spec, proposal)}
        if len(seen) == _MOST_MENTIONED:
            return


def absent_arguments(facts: ModelFacts, proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
    """With what was nothing in the line of code that failed, and with all that was nothing on the way there."""
    added: Proposal = {}
    for name in failure.absent:
        parameter = facts.parameters.get(name)
        if parameter is not None and name not in proposal and takes_input(parameter):
            spec = next(iter((*_missing_input(failure), *propose(facts, name))))
            if spec != {}:
                added[name] = fitting(spec, proposal)
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


def one_more(facts: ModelFacts, proposal: Proposal) -> Iterator[Proposal]:
    """With an argument that may be left out, as far as the signature goes, and nobody spoke of."""
    for name, parameter in facts.parameters.items():
        if name not in proposal and takes_input(parameter):
            yield from ({**proposal, name: fitting(spec, proposal)} for spec in propose(facts, name)[:2])


def fitting(spec: Any, proposal: Proposal) -> Any:
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
