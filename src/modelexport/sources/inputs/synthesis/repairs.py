"""The rules that repair a call which failed: each one proposes other arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch

from modelexport.sources.inputs.synthesis.initial_guess import (
    BATCH,
    LENGTH,
    guess,
    may_be_input,
    shape_for_convolution,
)
from modelexport.sources.inputs.synthesis.model_facts import CONVOLUTIONS, EMBEDDINGS
from modelexport.sources.inputs.synthesis.shape_repairs import (
    change_rank,
    extrapolate_size,
    match_operands,
    probe_sizes,
    resize,
    take_shape_from_message,
    take_size_from_message,
)
from modelexport.sources.inputs.synthesis.tensor_spec import Kind, Proposal, TensorSpec
from modelexport.sources.inputs.synthesis.trial_call import Attempt, Failure

_MAX_NAMED = 4
# Rounding inside the model hides the exact size: sizes near the computed one are tried too.
_NEARBY = (0, 1, -1, 2, -2, 3, 4)
_OTHER_LENGTHS = (8, 16, 64, 128, 1)
_LARGER_SIDES = (64, 256, 512)


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
    integers = [v for v in there if not (v.kind is Kind.FLOATS if isinstance(v, TensorSpec) else v.is_floating_point())]
    lengths = [value.shape[1] for value in integers if len(value.shape) == 2]
    usual = {BATCH: [value.shape[0] for value in there if value.shape], LENGTH: lengths}
    axes = {axis: usual[size][0] for axis, size in enumerate(spec.shape[:2]) if usual.get(size)}
    return spec.resized(axes)


@dataclasses.dataclass(frozen=True)
class _Mismatch:
    """A size that a module fixes on an axis of its input, whose shape has another; the rank may be fixed too."""

    shape: tuple[int, ...]
    axis: int
    size: int
    rank: int | None


def change_kind_for_module(attempt: Attempt) -> Iterator[Proposal]:
    """Give tokens to an embedding that got floats, and floats to a module with weights that got integers."""
    module, given = attempt.failure.module, attempt.failure.given
    if module is None or not given:
        return
    shape, dtype = given[0]
    if isinstance(module, EMBEDDINGS):
        kind, upper_bound = Kind.TOKENS, module.num_embeddings
    else:
        kind, upper_bound = Kind.FLOATS, 2
    if dtype.is_floating_point is not (kind is Kind.FLOATS):
        others = [(name, spec) for name, spec in attempt.tensors.items() if spec.kind is not kind]
        for name, spec in sorted(others, key=lambda item: item[1].shape != shape):
            yield attempt.replace(**{name: dataclasses.replace(spec, kind=kind, upper_bound=upper_bound)})


def change_size_for_module(attempt: Attempt) -> Iterator[Proposal]:
    """Give an argument the size that the module takes."""
    mismatch = _mismatch(attempt)
    if mismatch is None:
        return
    direct = _direct_argument(attempt, mismatch)
    if direct is not None:
        axis = mismatch.axis % len(mismatch.shape)
        yield attempt.replace(**{direct: attempt.tensors[direct].resized({axis: mismatch.size})})
        return
    yield from resize(attempt, mismatch.shape[mismatch.axis], mismatch.size)


def flatten_for_module(attempt: Attempt) -> Iterator[Proposal]:
    """Remove axes of an argument that goes straight to a module which takes any number of them."""
    mismatch = _mismatch(attempt)
    if mismatch is not None and mismatch.rank is None and len(mismatch.shape) > 3:
        for name, spec in attempt.tensors.items():
            if spec.shape == mismatch.shape:
                yield attempt.replace(**{name: spec.reshaped((spec.shape[0], mismatch.size))})
                yield attempt.replace(**{name: spec.reshaped((spec.shape[0], LENGTH, mismatch.size))})


def scale_for_module(attempt: Attempt) -> Iterator[Proposal]:
    """Scale the inner axes of an argument that the module gets flattened, by the ratio of the sizes."""
    mismatch = _mismatch(attempt)
    if mismatch is None or _direct_argument(attempt, mismatch) is not None:
        return
    for name, spec in attempt.tensors.items():
        inner = len(spec.shape) - 2
        if inner < 1 or spec.kind is not Kind.FLOATS:
            continue
        factor = (mismatch.size / mismatch.shape[mismatch.axis]) ** (1 / inner)
        for offset in _NEARBY:
            axes = {axis: round(spec.shape[axis] * factor) + offset for axis in range(2, len(spec.shape))}
            yield attempt.replace(**{name: spec.resized(axes)})


def _mismatch(attempt: Attempt) -> _Mismatch | None:
    """The size that is wrong, where the rank of the input fits."""
    module, given = attempt.failure.module, attempt.failure.given
    fixed = None if module is None or not given else _fixed_size(module)
    if fixed is None:
        return None
    found = _Mismatch(given[0][0], *fixed)
    ranks_fit = found.rank in (None, len(found.shape)) and -len(found.shape) <= found.axis < len(found.shape)
    return found if ranks_fit and found.shape[found.axis] != found.size else None


def _fixed_size(module: torch.nn.Module) -> tuple[int, int, int | None] | None:
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


def _direct_argument(attempt: Attempt, mismatch: _Mismatch) -> str | None:
    """The argument that a module without a fixed rank got unchanged."""
    operand = attempt.failure.operands[0] if attempt.failure.operands else None
    if mismatch.rank is not None or len(mismatch.shape) > 3 or operand is None or operand.shape != mismatch.shape:
        return None
    name = operand.origins[0] if len(operand.origins) == 1 else ""
    return name if name in attempt.tensors and attempt.tensors[name].shape == mismatch.shape else None


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


def enlarge_images(attempt: Attempt) -> Iterator[Proposal]:
    """Try images, or volumes, with larger sides."""
    for side in _LARGER_SIDES:
        images = {
            name: spec.resized(dict.fromkeys((-2 % len(spec.shape), -1 % len(spec.shape)), side))
            for name, spec in attempt.tensors.items()
            if spec.kind is Kind.FLOATS and len(spec.shape) > 3 and max(spec.shape[-2:]) < side
        }
        if images:
            yield attempt.replace(**images)


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
    (2, enlarge_images),
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
