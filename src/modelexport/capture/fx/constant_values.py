"""Values that are computed while `torch.export` traces: those that depend on no input, or all.

torch traces tensors without values. A size that the model computes from a buffer, or from a mask of ones that it
created, is unknown then, and code that depends on it cannot be traced; an operator on such tensors may have no ONNX
translation, or a wrong one. But these values are the same for all inputs. Values that depend on the inputs are
computed only where the user accepts a file for the values of the example inputs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from modelexport.capture import SourcePlace, find_place, module_paths, running_frames
from modelexport.display import counted
from modelexport.errors import UnusableOptionError
from modelexport.torch_support import in_this_thread
from modelexport.torch_support.private import (
    leaves_of,
    map_leaves,
    schema_of,
    storage_id,
    tensors_among,
    written_arguments,
)
from modelexport.torch_support.private_export import export_through, is_fake
from modelexport.torch_support.private_fx import (
    Tracer,
    constant_operator,
    fix_size,
    not_traced,
    tracer_of,
    tracing_through,
)

# Larger tensors are traced: the file would have them as constants.
_MOST_ELEMENTS = 1 << 20
_MOST_PLACES = 3
_READ = "values that depend on no input were computed while tracing, for code that reads them"
_FOLDED = "values that depend on no input were computed while tracing, and are constants of the graph"
_OF_INPUTS = "code that reads values has those of the example inputs"
# An operator that returns a number, or tensors whose sizes are values.
_IS_READ = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
_DATA: Any = torch.Tensor.data
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class ConstantValues:
    """The values of the traced tensors that depend on no input: buffers, new tensors, and results of both.

    Python code of the model can read them. With `folded`, an operator that has such a tensor and an input as arguments
    gets the value as a constant, and the operators that compute it are not in the graph. Buffers stay what they are.

    With `of_inputs`, the values of the example inputs and of weights are known too. All operators stay in the graph;
    code that reads a value gets a number, and a size that depends on values is fixed.
    """

    def __init__(self, model: torch.nn.Module, *, folded: bool = False, of_inputs: bool = False) -> None:
        self._model = model
        self._folded = folded
        self._of_inputs = of_inputs
        self._inputs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._paths = module_paths(model)
        self._places: dict[SourcePlace, None] = {}
        self._stored = {
            name: buffer.detach().clone()
            for name, buffer in model.named_buffers(remove_duplicate=False)
            if not is_fake(buffer) and buffer.numel() <= _MOST_ELEMENTS
        }
        self._weights = (
            {name: weight.detach() for name, weight in model.named_parameters(remove_duplicate=False)}
            if of_inputs
            else {}
        )
        self._is_used = False
        self._tracer: Tracer | None = None
        self._buffers: set[int] = set()
        self._values: Any = WeakTensorKeyDictionary()
        self._constants: Any = WeakTensorKeyDictionary()

    def known(self) -> contextlib.AbstractContextManager[None]:
        """Within the context, `torch.export` traces with these values known.

        It raises `UnusableOptionError` for a model that they make no difference to.
        """
        return export_through(self._export, required=True)

    def _export(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # Not while torch decomposes the program: it traces that, too, and cannot add constants there.
        with self._inputs_known(*args, **kwargs), tracing_through(self._trace), _DetachedData():
            program = original(*args, **kwargs)
        if not self._is_used:
            raise UnusableOptionError("every value that the model computes depends on an input.", "")
        return program

    @contextlib.contextmanager
    def _inputs_known(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None, **_: Any
    ) -> Iterator[None]:
        """Within the context, the tensors with which the model is called while it is traced have the given values."""
        if not self._of_inputs:
            yield
            return
        given = _leaves_by_name(args, kwargs or {})

        def before(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            traced = _leaves_by_name(args, kwargs)
            if len(traced) == len(given):
                pairs = [pair for pair in zip(traced, given, strict=True) if isinstance(pair[1], torch.Tensor)]
                with not_traced():
                    self._inputs = [(tensor, value.detach().clone()) for tensor, value in pairs]
                self._values.update(self._inputs)

        handle = model.register_forward_pre_hook(in_this_thread(before), with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()
            self._inputs = []

    def notes(self) -> tuple[str, ...]:
        """Return the note for the user, with the source lines that read such values."""
        lines = list({(place.file, place.line): str(place) for place in reversed(self._places)}.values())[::-1]
        more = f" and {counted(len(lines) - _MOST_PLACES, 'more line')}" if len(lines) > _MOST_PLACES else ""
        where = f" at {'; '.join(lines[:_MOST_PLACES])}{more}" if lines and not self._folded else ""
        return (f"{_OF_INPUTS if self._of_inputs else _FOLDED if self._folded else _READ}{where}",)

    def _trace(
        self, original: Callable[..., Any], mode: Any, func: Any, pre_dispatch: bool, args: Any, kwargs: Any
    ) -> Any:
        """Trace an operator, and compute it too where its arguments are known."""

        def as_constant(value: Any) -> Any:
            """Trace a value as torch traces the result of `torch.tensor`; a number is returned as it is."""
            if not isinstance(value, torch.Tensor):
                return value
            with not_traced():
                copied = value.clone()
            traced = original(mode, constant_operator(), pre_dispatch, (copied,), {})
            self._values[traced] = value
            self._is_used = True
            return traced

        self._begin(tracer_of(mode))
        known = self._known_arguments(func, args, kwargs)
        if known is None and self._folded:
            args, kwargs = self._with_constants(func, args, kwargs, as_constant)
        elif known is not None and not _IS_READ.isdisjoint(func.tags) and (values := _compute(func, known)) is not None:
            self._record_read()
            tensors = tensors_among(values)
            # torch does not take note that a size is zero.
            if not self._of_inputs or not all(tensor.numel() for tensor in tensors) or not tensors:
                return map_leaves(as_constant, values)
            traced = original(mode, func, pre_dispatch, args, kwargs)
            self._fix_sizes(traced, values)
            return traced
        traced = original(mode, func, pre_dispatch, args, kwargs)
        results = tensors_among(traced)
        if known is not None and (self._of_inputs or all(_is_small(tensor) for tensor in results)):
            values = tensors_among(_compute(func, known))
            if len(values) == len(results):
                self._values.update(zip(results, values, strict=True))
                return traced
        self._forget(written_arguments(func, args, kwargs))
        return traced

    def _begin(self, tracer: Tracer) -> None:
        """Take the values of buffers for a new trace; while it runs, the model's buffers are tensors without values."""
        if tracer is self._tracer:
            return
        self._tracer = tracer
        self._values, self._constants = WeakTensorKeyDictionary(), WeakTensorKeyDictionary()
        buffers = dict(self._model.named_buffers(remove_duplicate=False))
        self._buffers = set(map(id, buffers.values()))
        with not_traced():
            # Copies: an operator that writes into a buffer is computed with its value.
            copies = {name: value.clone() for name, value in self._stored.items()}
        self._values.update({buffers[name]: value for name, value in copies.items() if name in buffers})
        weights = dict(self._model.named_parameters(remove_duplicate=False)) if self._weights else {}
        self._values.update({weights[name]: value for name, value in self._weights.items() if name in weights})
        self._values.update(self._inputs)

    def _fix_sizes(self, traced: Any, values: Any) -> None:
        """Tell torch the sizes of tensors that depend on values, and remember their values."""
        for tensor, value in zip(tensors_among(traced), tensors_among(values), strict=True):
            for size, known in zip(tensor.shape, value.shape, strict=True):
                fix_size(size, known)
            self._values[tensor] = value

    def _known_arguments(self, func: Any, args: Any, kwargs: Any) -> Arguments | None:
        """The arguments with values in place of tensors; None where one is not known."""
        leaves = leaves_of((args, kwargs))
        if any(isinstance(leaf, _SYMBOLIC) for leaf in leaves):
            return None
        if not all(self._is_known(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)):
            return None
        found: Arguments = map_leaves(
            lambda leaf: self._values[leaf] if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs)
        )
        return found

    def _is_known(self, tensor: torch.Tensor) -> bool:
        if tensor not in self._values and not is_fake(tensor) and tensor.numel() <= _MOST_ELEMENTS:
            # An attribute of a module that is not a buffer.
            with not_traced():
                self._values[tensor] = tensor.detach().clone()
        return tensor in self._values

    def _with_constants(self, func: Any, args: Any, kwargs: Any, as_constant: Callable[[Any], Any]) -> Arguments:
        """The arguments with constants in place of known tensors; not where the result may share their memory."""

        def constant(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or id(leaf) in self._buffers or leaf not in self._values:
                return leaf
            if not is_fake(leaf):
                return leaf
            if leaf not in self._constants:
                self._constants[leaf] = as_constant(self._values[leaf])
            return self._constants[leaf]

        if any(returned.alias_info is not None for returned in schema_of(func).returns):
            return args, kwargs
        found: Arguments = map_leaves(constant, (args, kwargs))
        return found

    def _forget(self, written: list[torch.Tensor]) -> None:
        """Forget the values of tensors into which something unknown was written, and of all that share their memory."""
        memory = {storage_id(tensor) for tensor in written}
        for tensor in [tensor for tensor in self._values if memory and storage_id(tensor) in memory]:
            del self._values[tensor]

    def _record_read(self) -> None:
        self._is_used = True
        place = find_place(running_frames(sys._getframe(1)), self._paths)
        if place is not None:
            self._places[place] = None


class _DetachedData(TorchFunctionMode):
    """Traces `.data` as `.detach()`, which has the same memory: the tracer does not see `.data`."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func == _DATA.__get__:
            return args[0].detach()
        return func(*args, **(kwargs or {}))


def _leaves_by_name(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    return leaves_of((args, dict(sorted(kwargs.items()))))


def _compute(func: Any, known: Arguments) -> Any:
    """The result of an operator; None where it fails, or depends on random numbers."""
    args, kwargs = known
    with not_traced():
        # Dropout that is switched off is such an operator, too.
        state = torch.get_rng_state() if torch.Tag.nondeterministic_seeded in func.tags else None
        try:
            result = func(*args, **kwargs)
        except Exception:  # noqa: BLE001  the trace shows whether it matters
            return None
        if state is None:
            return result
        is_random = not torch.equal(state, torch.get_rng_state())
        torch.set_rng_state(state)
        return None if is_random or any(tensor.device.type != "cpu" for tensor in tensors_among(result)) else result


def _is_small(tensor: torch.Tensor) -> bool:
    return all(isinstance(size, int) for size in tensor.shape) and tensor.numel() <= _MOST_ELEMENTS
