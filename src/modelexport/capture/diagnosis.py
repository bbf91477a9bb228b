"""Why a model cannot be exported: the example inputs do not fit it, it returns no tensor, or an exporter fails."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from modelexport.capture.program_modules import ExportedProgramModule
from modelexport.capture.source_places import find_place, module_paths, raising_frames
from modelexport.errors import (
    DataDependentError,
    InputError,
    ModelExportError,
    StrategyIncompatibleError,
    UnsupportedLibraryError,
    UnusableOptionError,
)
from modelexport.torch_support import (
    TORCH_LOCK,
    CopyOnWrite,
    buffers_restored,
    copied_inputs,
    evaluation_mode,
    preserved_state,
    tensors_in,
)
from modelexport.torch_support.private import leaves_of, tensors_among
from modelexport.torch_support.private_export import data_dependence_errors, is_fake

_LONGEST_REASON = 300
# How many of the example inputs a message describes.
_DESCRIBED = 6
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


def check_forward(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, training: bool = False
) -> tuple[str, ...]:
    """Run the model once on the example inputs, as PyTorch runs it, and leave everything as it was.

    Exporters run a model on tensors without values, which takes types and layouts that PyTorch does not, and they
    fail with hundreds of lines where the inputs do not fit.

    Args:
        model: The model.
        args: Its positional example inputs.
        kwargs: Its example inputs by keyword.
        training: Run it in the mode it is in, instead of evaluation mode.

    Returns:
        Notes for the user: why it was not run, and what the graph will take otherwise than PyTorch.

    Raises:
        InputError: It fails, or returns nothing that a graph could return.
    """
    tensors = [*model.parameters(), *model.buffers(), *tensors_among((args, dict(kwargs)))]
    if isinstance(model, ExportedProgramModule) or any(torch.nn.parameter.is_lazy(tensor) for tensor in tensors):
        # The one is not traced but read. The other gets its weights when it is first called, which is not undone.
        return ()
    if any(is_fake(tensor) for tensor in tensors):
        return ("the example inputs were not checked: the model or its inputs are fake tensors",)
    try:
        result = _run(model, args, kwargs, training=training)
    except (NotImplementedError, MemoryError, torch.OutOfMemoryError) as error:
        return (f"the example inputs were not checked: PyTorch cannot run the model here ({in_one_line(error)})",)
    except (Exception, SystemExit) as error:
        raise InputError(_explain_rejection(model, args, kwargs, error)) from error
    _check_result(model, result)
    sparse = [name for name, tensor in _named_inputs(model, args, kwargs) if tensor.layout is not torch.strided]
    return tuple(f"the example input {name} is sparse: the graph takes a dense tensor" for name in sparse)


def _run(model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, training: bool) -> Any:
    """What the model returns.

    Where it fails it runs once more with the user's gradient mode and unwatched: what is to be known is whether PyTorch
    can run it at all.
    """
    written = CopyOnWrite(model)

    def run() -> Any:
        given, named = copied_inputs(args, kwargs)
        return model(*given, **named)

    with contextlib.ExitStack() as stack:
        stack.enter_context(TORCH_LOCK)
        stack.callback(written.restore)
        stack.enter_context(preserved_state(model))
        stack.enter_context(buffers_restored(model))
        if not training:
            stack.enter_context(evaluation_mode(model))
        # What is compiled, and control flow, would be compiled to be run.
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            with torch.no_grad(), written:
                return run()
        except Exception:  # noqa: BLE001  raised below if it was not the way it was run
            return run()


def _explain_rejection(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: BaseException
) -> str:
    given = list(_named_inputs(model, args, kwargs))
    described = [f"{name} {_described(tensor)}" for name, tensor in given[:_DESCRIBED]]
    inputs = ", ".join([*described, "…"] if len(given) > _DESCRIBED else described)
    said = f"{type(model).__name__}.forward fails on the example inputs{f' ({inputs})' if inputs else ''}: "
    said += in_one_line(error) + _place_of(error, model)
    taken = {tensor.dtype for _, tensor in given if tensor.is_floating_point()}
    weights = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    if taken and weights and taken.isdisjoint(weights):
        return f"{said}. Its weights are {_types(weights)} and the inputs {_types(taken)}: give both in one type"
    return f"{said}. Check their shapes, types and values: PyTorch itself cannot run the model on them"


def _place_of(error: BaseException, model: torch.nn.Module) -> str:
    """The innermost module that was running."""
    paths = {id(module): path for path, module in model.named_modules()}
    found, trace = "", error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_locals.get("self")
        if paths.get(id(module)):
            found = f", in {paths[id(module)]}: {type(module).__name__}({_extra(module)})"
        trace = trace.tb_next
    return found


def _extra(module: Any) -> str:
    try:
        return str(module.extra_repr())
    except Exception:  # noqa: BLE001  it is the user's, and only for the message
        return ""


def _named_inputs(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterable[tuple[str, torch.Tensor]]:
    try:
        given: Mapping[str, Any] = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        given = {**{f"#{number + 1}": value for number, value in enumerate(args)}, **kwargs}
    for name, value in given.items():
        yield from tensors_in(value, name)


def _described(tensor: torch.Tensor) -> str:
    place = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
    return f"{'x'.join(map(str, tensor.shape)) or 'scalar'} {_types([tensor.dtype])}{place}"


def _types(types: Iterable[torch.dtype]) -> str:
    return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in types))


def _check_result(model: torch.nn.Module, result: object) -> None:
    """Refuse a model of which a graph would have no outputs: exporters write one, and call it valid."""
    leaves = leaves_of(result)
    # A size is a number in PyTorch, and may be a tensor in the graph.
    if any(isinstance(leaf, torch.Tensor | np.ndarray | np.generic | int | float | complex) for leaf in leaves):
        return
    if any(True for _ in tensors_in(result, "")):
        return
    kind = type(result).__name__
    returned = "None" if result is None else f"an empty {kind}" if not leaves else f"a value of type {kind}"
    raise InputError(
        f"{type(model).__name__}.forward returns {returned} on the example inputs, without a tensor in it: a graph "
        "needs outputs; return tensors, alone or in tuples, lists, dicts or dataclasses"
    )


def explain_failure(strategy: str, exporter: str, model: torch.nn.Module, error: Exception) -> ModelExportError:
    """The error to raise for a failed export of a model that PyTorch runs on the example inputs."""
    if isinstance(error, UnusableOptionError):
        return StrategyIncompatibleError(strategy, error.reason, error.suggestion)
    if isinstance(error, UnsupportedLibraryError):
        return StrategyIncompatibleError(strategy, f"{error}.", "Another strategy may do without it")
    found = find_data_dependence(error)
    if found is not None:
        place = find_place(raising_frames(found.__traceback__), module_paths(model))
        where = f" at {place}" if place is not None else ""
        return DataDependentError(
            strategy,
            f"the {exporter} exporter cannot capture code that depends on the values of tensors{where}: "
            f"{in_one_line(found)}.",
            "Write it with torch.cond or tensor operations; strategy 'htp' fixes it to what the example inputs give",
            None if place is None else str(place),
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


def find_data_dependence(error: BaseException) -> BaseException | None:
    """The exception of a chain that says that the model's code depends on the values of tensors, if there is one.

    Its types are for control flow by values, for operators with a Python value as result, and for sizes that depend on
    values.
    """
    found: BaseException | None = error
    kinds = data_dependence_errors()
    seen = set()
    while found is not None and id(found) not in seen:
        if isinstance(found, kinds):
            return found
        seen.add(id(found))
        # torch's strict capture raises again what it caught, without the cause.
        found = found.__cause__ or found.__context__
    return None


def in_one_line(error: BaseException) -> str:
    """What an exception says, short enough to be part of a sentence."""
    text = " ".join(_ESCAPE_SEQUENCE.sub("", str(error)).split())
    if len(text) > _LONGEST_REASON:
        text = text[:_LONGEST_REASON].rstrip() + " …"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
