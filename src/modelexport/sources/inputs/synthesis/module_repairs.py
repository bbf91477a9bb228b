"""Other types and sizes for arguments, by what the module wants that was running when a call failed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from modelexport.sources.inputs.synthesis.initial_guess import LENGTH
from modelexport.sources.inputs.synthesis.model_facts import CONVOLUTIONS, TABLES
from modelexport.sources.inputs.synthesis.tensor_spec import Kind, Proposal, TensorSpec, tensors
from modelexport.sources.inputs.synthesis.trial_call import Failure

# Words for a type that an operation of torch misses.
_TYPES = ((Kind.TRUTH, ("bool",)), (Kind.NUMBERS, ("dtype", "float", "scalar type")))
_MOST_SENSIBLE_SIZE = 1 << 14


def by_module(proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
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
        yield from resized(proposal, shape[axis], size)
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


def by_said_type(proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
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


def resized(proposal: Proposal, size: int, wanted: int) -> Iterator[Proposal]:
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
