"""Explain why a model cannot be exported: wrong example inputs, no tensor as a result, or a failing exporter."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from modelexport.capture.capture import VariantError
from modelexport.capture.program_modules import ExportedProgramModule
from modelexport.capture.source_places import find_place, module_paths, raising_frames
from modelexport.display import message_of
from modelexport.errors import (
    DataDependentError,
    InputError,
    StrategyIncompatibleError,
    UnsupportedLibraryError,
    UnusableOptionError,
    find_own_error,
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
# The number of example inputs that a message describes.
_MAX_DESCRIBED = 6
# Terminal colours in torch's messages.
_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f]")


def check_signature(model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Check that the inputs bind to the arguments of `forward`.

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
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    training: bool = False,
    on_result: Callable[[object], object] = lambda result: None,
    written: CopyOnWrite | None = None,
) -> tuple[str, ...]:
    """Run the model once in eager mode on the example inputs, and restore everything that the run changes.

    Exporters run a model on fake tensors, which accept types and layouts that eager mode does not. Where the inputs do
    not fit, their errors are hundreds of lines long. Calls `on_result` with the result. `written` gets copies of the
    weights that the model overwrites; by default they are dropped after the run.

    Returns:
        Notes for the user: why it was not run, and which inputs differ in the graph.

    Raises:
        InputError: It fails, or returns no tensor.
    """
    try:
        tensors = [*model.parameters(), *model.buffers(), *tensors_among((args, dict(kwargs)))]
        if isinstance(model, ExportedProgramModule) or any(torch.nn.parameter.is_lazy(tensor) for tensor in tensors):
            # A program is not traced. A lazy module gets its weights in its first call, which cannot be undone.
            return ()
        if any(is_fake(tensor) for tensor in tensors):
            return ("the example inputs were not checked: the model or its inputs are fake tensors",)
        try:
            result = _run(model, args, kwargs, training, written if written is not None else CopyOnWrite(model))
        except UnsupportedLibraryError:
            raise
        except (Exception, SystemExit) as error:
            if _is_about_this_machine(error):
                return (
                    f"the example inputs were not checked: PyTorch cannot run the model here ({in_one_line(error)})",
                )
            raise InputError(_explain_rejection(model, args, kwargs, error)) from error
        _check_result(model, result)
        on_result(result)
        sparse = [name for name, tensor in _named_inputs(model, args, kwargs) if tensor.layout is not torch.strided]
        return tuple(f"the example input {name} is sparse: the graph takes a dense tensor" for name in sparse)
    except UnsupportedLibraryError as error:
        return (f"the example inputs were not checked: {error}",)


def _run(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool, written: CopyOnWrite
) -> Any:
    """Return the result of the model.

    Where it fails it runs once more with the user's gradient mode and without copy-on-write: the question is whether
    PyTorch can run it at all.
    """

    def run(*contexts: contextlib.AbstractContextManager[object]) -> Any:
        copied_args, copied_kwargs = copied_inputs(args, kwargs)
        with contextlib.ExitStack() as stack:
            stack.enter_context(TORCH_LOCK)
            stack.callback(written.restore)
            stack.enter_context(preserved_state(model))
            stack.enter_context(buffers_restored(model))
            if not training:
                stack.enter_context(evaluation_mode(model))
            # Otherwise torch would compile compiled modules and control flow for this run. Where that fails because of
            # copy-on-write, torch remembers it and traces them in another way from then on.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            for context in contexts:
                stack.enter_context(context)
            return model(*copied_args, **copied_kwargs)

    try:
        return run(torch.no_grad(), written)
    except UnsupportedLibraryError:
        raise
    except Exception:  # noqa: BLE001  raised below if it fails again
        return run()


def _is_about_this_machine(error: BaseException) -> bool:
    """Whether an operator has no kernel here, or memory is short: torch exports a model without running it."""
    if isinstance(error, NotImplementedError | MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in message_of(error)


def _explain_rejection(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: BaseException
) -> str:
    named = list(_named_inputs(model, args, kwargs))
    described = [f"{name} {_described(tensor)}" for name, tensor in named[:_MAX_DESCRIBED]]
    inputs = ", ".join([*described, "…"] if len(named) > _MAX_DESCRIBED else described)
    message = f"{type(model).__name__}.forward fails on the example inputs{f' ({inputs})' if inputs else ''}: "
    message += in_one_line(error) + _innermost_module(error, model)
    types = {tensor.dtype for _, tensor in named if tensor.is_floating_point()}
    weights = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    if types and weights and types.isdisjoint(weights):
        return f"{message}. Its weights are {_types(weights)} and the inputs {_types(types)}: use one type for both"
    return f"{message}. Check their shapes, types and values: PyTorch itself cannot run the model on them"


def _innermost_module(error: BaseException, model: torch.nn.Module) -> str:
    """Return the innermost module that was running, as text."""
    place = find_place(raising_frames(error.__traceback__), module_paths(model))
    if place is None or not place.module:
        return ""
    module = dict(model.named_modules())[place.module]
    return f", in {place.module}: {type(module).__name__}({_extra(module)})"


def _extra(module: Any) -> str:
    try:
        return str(module.extra_repr())
    except Exception:  # noqa: BLE001  user code, and only for the message
        return ""


def _named_inputs(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterable[tuple[str, torch.Tensor]]:
    try:
        arguments: Mapping[str, Any] = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        arguments = {**{f"#{number + 1}": value for number, value in enumerate(args)}, **kwargs}
    for name, value in arguments.items():
        yield from tensors_in(value, name)


def _described(tensor: torch.Tensor) -> str:
    device = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
    return f"{'x'.join(map(str, tensor.shape)) or 'scalar'} {_types([tensor.dtype])}{device}"


def _types(types: Iterable[torch.dtype]) -> str:
    return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in types))


def _check_result(model: torch.nn.Module, result: object) -> None:
    """Check that the graph will have outputs: exporters write a graph without any."""
    leaves = leaves_of(result)
    # A number such as a size can be a tensor in the graph.
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


@contextlib.contextmanager
def failures_explained(strategy: str, exporter: str, model: torch.nn.Module) -> Iterator[None]:
    """Raise for a failed export of a model, which PyTorch runs on the example inputs, an error with the reason.

    Raises:
        StrategyIncompatibleError: The exporter failed within the context.
        ModelExportError: This package failed in it, also where torch wraps the error: never the exporter's fault.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001  torch raises many kinds of errors; every branch raises
        retry = error.variant if isinstance(error, VariantError) else None
        cause = error.__cause__ if retry is not None and error.__cause__ is not None else error
        own = find_own_error(cause)
        if own is None:
            explained = _explain_failure(strategy, exporter, model, cause)
        elif isinstance(own, UnusableOptionError):
            explained = StrategyIncompatibleError(strategy, own.reason, own.suggestion)
        elif isinstance(own, UnsupportedLibraryError):
            explained = StrategyIncompatibleError(strategy, f"{own}.", "Another strategy may not need it")
        else:
            raise own from own.__cause__
        explained.retry = retry
        raise explained from cause


def _explain_failure(
    strategy: str, exporter: str, model: torch.nn.Module, error: BaseException
) -> StrategyIncompatibleError:
    found = find_data_dependence(error)
    if found is not None:
        place = find_place(raising_frames(found.__traceback__), module_paths(model))
        where = f" at {place}" if place is not None else ""
        return DataDependentError(
            strategy,
            f"the {exporter} exporter cannot capture code that depends on the values of tensors{where}: "
            f"{in_one_line(found)}.",
            "Rewrite it with torch.cond or tensor operations; strategy 'htp' exports only what the example inputs run",
            None if place is None else str(place),
        )
    return StrategyIncompatibleError(
        strategy,
        f"the {exporter} exporter failed with {in_one_line(root_cause(error))}.",
        "PyTorch runs the model on these inputs, so the exporter does not support it: "
        "see the cause of this error for torch's own report",
    )


def root_cause(error: BaseException) -> BaseException:
    """Return the first exception of a chain of causes: torch wraps errors several times."""
    seen = {id(error)}
    while True:
        cause = error.__cause__
        if cause is None or id(cause) in seen:
            return error
        seen.add(id(cause))
        error = cause


def find_data_dependence(error: BaseException) -> BaseException | None:
    """Return the exception of a chain that torch raises for code that depends on the values of tensors, if any.

    There are types for control flow by values, for operators that return a Python value, and for sizes that depend on
    values. A value that is to be a key of a dict or an element of a set raises a `TypeError`.
    """
    found: BaseException | None = error
    kinds = data_dependence_errors()
    seen = set()
    while found is not None and id(found) not in seen:
        if isinstance(found, kinds) or _is_from_hash(found):
            return found
        seen.add(id(found))
        # torch's strict mode raises another exception without setting the cause.
        found = found.__cause__ or found.__context__
    return None


def _is_from_hash(error: BaseException) -> bool:
    """Whether a value that is unknown while tracing was to be hashed."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code is torch.SymInt.__hash__.__code__


def in_one_line(error: BaseException) -> str:
    """Return type and message of an exception in one line, shortened to be part of a sentence."""
    text = " ".join(_ESCAPE_SEQUENCE.sub("", message_of(error)).split())
    if len(text) > _LONGEST_REASON:
        text = text[:_LONGEST_REASON].rstrip() + " …"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
