"""Example inputs as people write them, in the form a model is called with."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from modelexport.errors import InputError


def normalize_inputs(
    example_inputs: object, kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from a tensor, tuple, list or dict.

    A dict holds keyword arguments. A tuple or list holds positional ones; as with `torch.onnx.export`, a dict at
    its end holds keyword arguments (to pass a dict as the last positional argument, add an empty dict).

    Raises:
        InputError: Something else was given.
    """
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InputError(f"kwargs is a {type(kwargs).__name__}: give a dict of keyword arguments")
    named: dict[Any, Any] = dict(kwargs or {})
    if isinstance(example_inputs, torch.Tensor):
        args: tuple[Any, ...] = (example_inputs,)
    elif isinstance(example_inputs, Mapping):
        args = ()
        clash = sorted(set(map(str, example_inputs)) & set(named))
        if clash:
            raise InputError(f"example inputs and kwargs both have {', '.join(clash)}: give each input once")
        named = {**example_inputs, **named}
    elif isinstance(example_inputs, tuple | list):
        args = tuple(example_inputs)
        if not named and args and isinstance(args[-1], dict):
            args, named = args[:-1], dict(args[-1])
    else:
        raise InputError(
            f"example inputs are a {type(example_inputs).__name__}: give a tensor, a tuple or list of positional "
            "arguments, or a dict of keyword arguments"
        )
    unnamed = [key for key in named if not isinstance(key, str)]
    if unnamed:
        raise InputError(f"the keyword argument {unnamed[0]!r} of the example inputs is not a string")
    return args, named


def copied_inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs that the model may change; of those that cannot be copied the tensors at least."""
    given = (args, dict(kwargs))
    try:
        return copy.deepcopy(given)
    except Exception:  # noqa: BLE001  whatever a user's object raises; torch refuses results and some layouts
        copied: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map_only(torch.Tensor, _copied_tensor, given)
        return copied


def _copied_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)
