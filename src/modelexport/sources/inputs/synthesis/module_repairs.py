"""Repairs by the module that was running when a call failed: its weights tell the type and size of its input."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from modelexport.sources.inputs.synthesis.attempt import Attempt
from modelexport.sources.inputs.synthesis.initial_guess import LENGTH
from modelexport.sources.inputs.synthesis.model_facts import CONVOLUTIONS, EMBEDDINGS
from modelexport.sources.inputs.synthesis.shape_repairs import resize
from modelexport.sources.inputs.synthesis.tensor_spec import Kind, Proposal

# Rounding inside the model hides the exact size: sizes near the computed one are tried too.
_NEARBY = (0, 1, -1, 2, -2, 3, 4)


@dataclasses.dataclass(frozen=True)
class _Mismatch:
    """A size that a module fixes and its input has not.

    Attributes:
        shape: The shape of the input.
        axis: The axis of the input whose size is fixed.
        size: That size.
        rank: The rank of the input, where that is fixed too.
    """

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
