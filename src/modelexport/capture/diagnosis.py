"""Why torch could not export: whether the inputs do not fit the model, or the exporter cannot take it."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch

from modelexport.errors import (
    InputError,
    ModelExportError,
    StrategyIncompatibleError,
    UnsupportedLibraryError,
    UnusableOptionError,
)

_LONGEST_REASON = 300
# Colours for terminals, which torch puts into its messages.
_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f]")


def check_signature(model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse inputs that `forward` has no arguments for.

    Raises:
        InputError: Too many, too few, or unknown arguments.
    """
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        given = ", ".join([*(f"#{i + 1} {type(a).__name__}" for i, a in enumerate(args)), *kwargs]) or "nothing"
        raise InputError(
            f"the example inputs do not fit {type(model).__name__}.forward{signature}: {error} (given: {given}). "
            "Pass a tuple for positional and a dict for keyword arguments"
        ) from error


def explain_failure(
    strategy: str,
    exporter: str,
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    error: Exception,
) -> ModelExportError:
    """The error to raise for a failed export.

    The model is run once on the example inputs, as they are: if that fails too, they are what is wrong.
    """
    if isinstance(error, UnusableOptionError):
        return StrategyIncompatibleError(strategy, error.reason, error.suggestion)
    if isinstance(error, UnsupportedLibraryError):
        return StrategyIncompatibleError(strategy, f"{error}.", "Another strategy may do without it")
    rejected = _run_eagerly(model, args, kwargs)
    if rejected is not None:
        return InputError(
            f"{type(model).__name__}.forward fails on the example inputs: {in_one_line(rejected)}. "
            "Check their shapes, types and values: PyTorch itself cannot run the model on them"
        )
    return StrategyIncompatibleError(
        strategy,
        f"the {exporter} exporter failed with {in_one_line(root_cause(error))}.",
        "PyTorch runs the model on these inputs, so it is the exporter that cannot take it: "
        "see the error's cause for torch's own report",
    )


def root_cause(error: BaseException) -> BaseException:
    """The first exception of a chain: torch wraps what went wrong in several layers of advice."""
    seen = {id(error)}
    while True:
        cause = error.__cause__
        if cause is None or id(cause) in seen:
            return error
        seen.add(id(cause))
        error = cause


def in_one_line(error: BaseException) -> str:
    """What an exception says, short enough to be part of a sentence."""
    text = " ".join(_ESCAPE_SEQUENCE.sub("", str(error)).split())
    if len(text) > _LONGEST_REASON:
        text = text[:_LONGEST_REASON].rstrip() + " …"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _run_eagerly(model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Exception | None:
    """What running the model raises, if anything. It is a copy that runs: `forward` may change what it works on."""
    try:
        runner, inputs, named = copy.deepcopy((model, args, dict(kwargs)))
    except Exception:  # noqa: BLE001  what cannot be copied is not run: the exporter's own error stands
        return None
    try:
        with torch.no_grad():
            runner(*inputs, **named)
    except Exception as error:  # noqa: BLE001  whatever a user's forward raises is the answer
        return error
    return None
