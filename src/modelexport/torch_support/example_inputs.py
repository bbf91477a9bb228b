"""Models and example inputs as users give them: checked, and converted to positional and keyword arguments."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch

from modelexport.errors import InputError
from modelexport.torch_support.private import map_leaves


def check_model(model: object) -> None:
    """Check that it is a module."""
    if not isinstance(model, torch.nn.Module):
        hint = " (a class: create the model first)" if isinstance(model, type) else ""
        raise InputError(f"the model is a {type(model).__name__}{hint}, not a torch.nn.Module: pass the module itself")


def normalize_inputs(
    example_inputs: object, kwargs: Mapping[str, Any] | None, model: torch.nn.Module | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from a tensor, tuple, list or dict.

    A dict contains keyword arguments, a tuple or list positional ones. As in `torch.onnx.export`, a dict at the end of
    a tuple contains keyword arguments (to pass a dict as the last positional argument, append an empty dict). Where the
    arguments of the `model` leave only the other possibility, such a dict is the last positional argument.

    Raises:
        InputError: The inputs have another type, or a name is not a string or repeats.
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
        if not named and args and isinstance(args[-1], dict) and not _takes_only_positional(model, args):
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


def _takes_only_positional(model: torch.nn.Module | None, args: tuple[Any, ...]) -> bool:
    """Whether `forward` accepts these arguments, and not with the dict at the end as keyword arguments."""
    if model is None:
        return False
    try:
        signature = inspect.signature(model.forward)
        signature.bind(*args)
    except (TypeError, ValueError):
        return False
    try:
        signature.bind(*args[:-1], **args[-1])
    except TypeError:
        return True
    return False


def exporter_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any] | None]:
    """The arguments as `torch.onnx.export` takes them: to it, a dict at the end of `args` is keyword arguments."""
    if not kwargs and args and isinstance(args[-1], dict):
        return (*args, {}), None
    return args, dict(kwargs) or None


def copied_inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copies of the inputs, which the model may change; where they cannot be copied, at least their tensors are."""
    given = (args, dict(kwargs))
    try:
        return copy.deepcopy(given)
    except Exception:  # noqa: BLE001  a user's object may raise anything; torch cannot copy non-leaf tensors and some layouts
        copied: tuple[tuple[Any, ...], dict[str, Any]] = map_leaves(_copied, given)
        return copied


def _copied(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)
