"""Dynamic axes of the inputs: named by the user, or found by running the model with other sizes."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from modelexport.capture.size_ranges import size_range
from modelexport.errors import InputError
from modelexport.hierarchy import SizeRange
from modelexport.torch_support import (
    TORCH_LOCK,
    copied_inputs,
    evaluation_mode,
    exporter_arguments,
    isolated_run,
    named_results,
    preserved_state,
)
from modelexport.torch_support.private import leaves_of, leaves_with_keys, map_leaves, map_leaves_with_keys
from modelexport.torch_support.private_export import export_through

AUTO = "auto"
BATCH = "batch"
SEQUENCE = "sequence"
# The changes of size that are tried for an axis, in steps; forward must run with both of a pair.
_LARGER, _SMALLER = (1, 3), (-1, -2)
_CHANGES = (_LARGER, _SMALLER)
# The size that replaces 1 in trials.
_INSTEAD_OF_ONE = 3

# A dimension: its name, and in front of it the number of which all sizes are multiples.
_DIMENSION = re.compile(r"(?:([1-9]\d*)\*)?([^\W\d]\w*)")

# The option `dynamic`: `AUTO`, or for each input the name of the dimension by axis.
DynamicAxes = str | Mapping[str, Mapping[int, str]]
# The name of an input tensor, and the number of the axis.
Axis = tuple[str, int]
_Shapes = list[tuple[str, tuple[int, ...]]]


@dataclasses.dataclass(frozen=True)
class ExampleCall:
    """A call of a model with example inputs."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def bound(self) -> dict[str, Any]:
        """Return the arguments by the names of forward's parameters."""
        return dict(inspect.signature(self.model.forward).bind(*self.args, **self.kwargs).arguments)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors in the arguments by name: the keys that lead to a tensor, joined with dots."""
        return {_joined(keys): leaf for keys, leaf in leaves_with_keys(self.bound()) if isinstance(leaf, torch.Tensor)}

    def resized(self, sizes: Mapping[Axis, int]) -> ExampleCall:
        """Return the call with other sizes: elements are repeated, or those at the end are left out."""
        changed: dict[int, torch.Tensor] = {}
        for (name, axis), size in sizes.items():
            original = self.tensors()[name]
            tensor = changed.get(id(original), original)
            indices = torch.arange(size, device=tensor.device) % tensor.shape[axis]
            changed[id(original)] = tensor.index_select(axis, indices)
        return self.replaced(changed)

    def replaced(self, tensors: Mapping[int, torch.Tensor]) -> ExampleCall:
        """Return the call with other tensors, by the `id()` of the tensors that they replace."""
        args, kwargs = map_leaves(lambda leaf: tensors.get(id(leaf), leaf), (self.args, self.kwargs))
        return dataclasses.replace(self, args=args, kwargs=kwargs)

    def result_shapes(self) -> _Shapes | None:
        """Return the names and shapes of the model's results; None where forward fails."""
        with isolated_run(self.model):
            args, kwargs = copied_inputs(self.args, self.kwargs)
            try:
                result = self.model(*args, **kwargs)
            except Exception:  # noqa: BLE001  forward may raise anything for a size that it does not support
                return None
            return [(name, tuple(tensor.shape)) for name, tensor in named_results(result)]


def _joined(keys: Iterable[object]) -> str:
    return ".".join(map(str, keys))


def check_axes(named: object, call: ExampleCall) -> dict[Axis, str]:
    """Return the axes that the user named: for each input the name of the dimension by axis.

    Raises:
        InputError: The option has another form, an axis does not exist, or it is named twice.
    """
    tensors = call.tensors()
    found: dict[Axis, str] = {}
    for name, axis, dimension in _named_axes(named):
        described = f"the dynamic axis {name}:{axis}={dimension}"
        if name not in tensors:
            raise InputError(f"{described}: there is no input {name!r}; the inputs are {', '.join(tensors) or 'none'}")
        rank = tensors[name].dim()
        if not -rank <= axis < rank:
            raise InputError(f"{described}: {name} has {f'the axes 0 to {rank - 1}' if rank else 'no axes'}")
        positive = (name, axis % rank)
        if positive in found:
            raise InputError(f"{described}: axis {axis} of {name} is named twice")
        if not _DIMENSION.fullmatch(dimension):
            raise InputError(
                f"{described}: {dimension!r} is not a valid dimension name; use letters, digits and _, as in n or 8*n"
            )
        found[positive] = dimension
    return found


def _named_axes(named: object) -> Iterator[tuple[str, int, str]]:
    """Yield input, axis and dimension name of each named axis."""
    for name, axes in named.items() if isinstance(named, Mapping) else [("", named)]:
        for axis, dimension in axes.items() if isinstance(axes, Mapping) else [(axes, None)]:
            if not (isinstance(name, str) and isinstance(axis, int) and isinstance(dimension, str)):
                raise InputError(
                    f"dynamic={named!r} does not name axes: pass {AUTO!r}, or the dimensions by input and axis, as in "
                    "{'input_ids': {0: 'batch', 1: 'length'}}"
                )
            yield name, axis, dimension


def find_axes(call: ExampleCall) -> dict[Axis, str]:
    """Find the dynamic axes by running the model with other sizes; axes that must change together share a name.

    First the axes with equal number and size are tried, each alone and the rest together; then all remaining axes of
    equal size. An axis is dynamic where forward runs with two other sizes and returns tensors of the same names and
    ranks, whose sizes change in the same direction or not at all. Networks with strides and skips take multiples of a
    number only, which their dimensions then name: ``8*x_2``.
    """
    call = _without_ones(_with_varied_values(call))
    sizes = _sizes(call)
    trial = _Trial(call, sizes)
    left, groups = list(sizes), dict[tuple[Axis, ...], int]()

    keys: list[Callable[[Axis], tuple[int, ...]]] = [lambda axis: (axis[1], sizes[axis]), lambda axis: (sizes[axis],)]
    for key in keys:
        for _, together in itertools.groupby(sorted(left, key=key), key=key):
            groups |= trial.split(tuple(together))
        left = [axis for axis in left if not any(axis in group for group in groups)]
    return _named(groups, call)


def _sizes(call: ExampleCall) -> dict[Axis, int]:
    return {(name, axis): size for name, t in call.tensors().items() for axis, size in enumerate(t.shape) if size}


def _with_varied_values(call: ExampleCall) -> ExampleCall:
    """Return the call with `varied_values` for the integer tensors that have them, if forward accepts them."""
    varied = {id(tensor): varied_values(tensor) for tensor in call.tensors().values() if not tensor.is_floating_point()}
    result = call.replaced({key: tensor for key, tensor in varied.items() if tensor is not None})
    return result if result.result_shapes() is not None else call


def varied_values(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a tensor of equal elements with its first element changed, None for any other tensor.

    A model may skip a mask that masks nothing. The first element of a mask is where padding on the left begins.
    """
    if tensor.numel() < 2 or bool((tensor != tensor.flatten()[0]).any()):
        return None
    varied = tensor.clone(memory_format=torch.contiguous_format)
    varied.view(-1)[0] = int(not varied.view(-1)[0])
    return varied


def _without_ones(call: ExampleCall) -> ExampleCall:
    """Return the call with larger sizes instead of 1 where forward accepts them: 1 broadcasts to any other size."""
    usual = call.result_shapes()
    for number in sorted({axis for (_, axis), size in _sizes(call).items() if size == 1}):
        ones = [axis for axis, size in _sizes(call).items() if axis[1] == number and size == 1]
        # All axes of one number together, while the other sizes stay.
        more = call.resized(dict.fromkeys(ones, _INSTEAD_OF_ONE))
        found = more.result_shapes()
        if usual is not None and found is not None and _follows(usual, found, larger=True):
            call, usual = more, found
    return call


class _Trial:
    """Runs of the model at other sizes."""

    def __init__(self, call: ExampleCall, sizes: Mapping[Axis, int]) -> None:
        self._call = call
        self._sizes = sizes
        self._usual = call.result_shapes()

    def split(self, group: tuple[Axis, ...]) -> dict[tuple[Axis, ...], int]:
        """Return the parts of the group that can change, with their steps: axes alone, and the rest together."""
        # A larger size may just be cut off by forward: an axis that changes alone must also accept smaller sizes.
        alone = {(axis,): step for axis in group if len(group) > 1 and (step := self.step((axis,), all))}
        rest = tuple(axis for axis in group if (axis,) not in alone)
        together = {rest: step} if rest and (step := self.step(rest)) else {}
        if alone and rest and not together and (step := self.step(group)):
            return {group: step}
        return together | alone

    def step(self, group: tuple[Axis, ...], needed: Callable[[Iterable[bool]], bool] = any) -> int:
        """Return the smallest step in which the sizes can change: up or down, with `all` both; 0 for none."""
        steps = (step for step in self._steps(group) if needed(self._runs(group, step, pair) for pair in _CHANGES))
        return next(steps, 0)

    def _steps(self, group: tuple[Axis, ...]) -> Iterator[int]:
        """Yield the steps to try; where forward takes the double size, also those that divide the size."""
        yield 1
        size = self._sizes[group[0]]
        if self._runs(group, size, (1,)):
            yield from (step for step in range(2, size + 1) if size % step == 0)

    def _runs(self, group: tuple[Axis, ...], step: int, changes: tuple[int, ...]) -> bool:
        size = self._sizes[group[0]]
        if self._usual is None or size + step * min(changes) < 1:
            return False
        for change in changes:
            found = self._call.resized(dict.fromkeys(group, size + step * change)).result_shapes()
            if found is None or not _follows(self._usual, found, larger=change > 0):
                return False
        return True


def _follows(usual: _Shapes, found: _Shapes, larger: bool) -> bool:
    """Whether the results have the same names and ranks, and no size changed in the other direction."""
    if [(name, len(shape)) for name, shape in usual] != [(name, len(shape)) for name, shape in found]:
        return False
    pairs = [pair for (_, old), (_, new) in zip(usual, found, strict=True) for pair in zip(old, new, strict=True)]
    return all(new >= old if larger else new <= old for old, new in pairs)


def _named(groups: Mapping[tuple[Axis, ...], int], call: ExampleCall) -> dict[Axis, str]:
    """Return a name for each axis, with the step in front of it where the sizes of a group change in larger steps.

    It is `batch` for the axes 0 where they change together, or where only one changes; `sequence` for axis 1 of a
    matrix of integers, which is a batch of sequences of indices; otherwise the argument and the number of the axis.
    """
    first = [group for group in groups if all(axis == 0 for _, axis in group)]
    batches = {group for group in first if len(first) == 1 or len(group) > 1}
    tensors = call.tensors()
    indices = {(name, 1) for name, tensor in tensors.items() if tensor.dim() == 2 and not tensor.is_floating_point()}
    sequences = [group for group in groups if group not in batches and not indices.isdisjoint(group)]
    names: dict[Axis, str] = {}
    for group in groups:
        name, axis = group[0]
        named = BATCH if group in batches else f"{name}_{axis}"
        if group in sequences:
            named = SEQUENCE if len(sequences) == 1 else f"{name}_{SEQUENCE}"
        multiple = f"{groups[group]}*" if groups[group] > 1 else ""
        names |= dict.fromkeys(group, multiple + re.sub(r"\W", "_", named))
    return {axis: names[axis] for axis in _sizes(call) if axis in names}


def size_step(dimension: str) -> int:
    """Return the number of which all sizes of a dimension are multiples: 8 for ``8*n``, 1 for ``n``."""
    parts = _DIMENSION.fullmatch(dimension)
    return int(parts[1] or 1) if parts is not None else 1


def with_sizes_above_one(call: ExampleCall, axes: Iterable[Axis]) -> ExampleCall:
    """Return the call with size 2 instead of 1 on these axes: torch treats a size of 1 as constant."""
    tensors = call.tensors()
    sizes = {(name, axis): 2 for name, axis in axes if tensors[name].shape[axis] == 1}
    return call.resized(sizes) if sizes else call


def dynamic_shapes(call: ExampleCall, axes: Mapping[Axis, Any]) -> dict[str, Any]:
    """Return the axes as `torch.export` takes them: in the structure of the arguments, in the order of the call.

    `torch.export` matches the shapes with arguments by name, but `torch.onnx` names the axes by position: it pairs the
    graph's inputs, which are in the order of the call, with the entries of this dict.
    """

    def of_leaf(keys: tuple[object, ...], leaf: object) -> dict[int, Any] | None:
        if not isinstance(leaf, torch.Tensor):
            return None
        name = _joined(keys)
        return {axis: _dimension_of(dimension) for (of, axis), dimension in axes.items() if of == name} or None

    shapes = dict(map_leaves_with_keys(of_leaf, call.bound()))
    positional = inspect.signature(call.model.forward).bind_partial(*call.args).arguments
    # Arguments collected by `**kwargs` are one entry, with the name of that parameter.
    return {name: shapes[name] for name in (*positional, *call.kwargs, *shapes) if name in shapes}


def _dimension_of(dimension: Any) -> Any:
    """Return the dimension as `torch.export` takes it: a name does not say that all sizes are multiples of a number."""
    if not isinstance(dimension, str) or size_step(dimension) == 1:
        return dimension
    return size_step(dimension) * torch.export.Dim(dimension.partition("*")[2])


def axes_by_input(axes: Mapping[Axis, str]) -> dict[str, dict[int, str]]:
    """Return the axes in the form of the option `dynamic`, which is also that of the TorchScript exporter."""
    found: dict[str, dict[int, str]] = {}
    for (name, axis), dimension in axes.items():
        found.setdefault(name, {})[axis] = dimension
    return found


def result_axes(call: ExampleCall, axes: Mapping[Axis, str]) -> dict[str, dict[int, str]]:
    """Return the axes of the results that change with these dimensions of the inputs, by name of the result.

    An axis that has the size of one dimension has its name as well; the others are named by result and number.
    """
    usual, sizes = call.result_shapes(), _sizes(call)
    found: dict[str, dict[int, str]] = {}
    for dimension in dict.fromkeys(axes.values()):
        step = size_step(dimension)
        larger = {axis: sizes[axis] + step for axis, name in axes.items() if name == dimension}
        same = {(size - step, size) for size in larger.values()}
        changed = call.resized(larger).result_shapes()
        if usual is None or changed is None or not _follows(usual, changed, larger=True):
            continue
        for (name, old), (_, new) in zip(usual, changed, strict=True):
            for number, pair in enumerate(zip(old, new, strict=True)):
                if pair[0] != pair[1]:
                    own = same == {pair} and number not in found.get(name, ())
                    found.setdefault(name, {})[number] = dimension if own else re.sub(r"\W", "_", f"{name}_{number}")
    return found


def axes_freed_by_torch(call: ExampleCall, axes: Mapping[Axis, str]) -> dict[Axis, str]:
    """Return the axes that torch's exporter leaves dynamic with `Dim.AUTO`; none where it cannot export the model."""
    args, kwargs = copied_inputs(call.args, call.kwargs)
    asked = dataclasses.replace(call, args=args, kwargs=kwargs)
    found: dict[Axis, str] = {}

    def ask(export: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        program = export(*args, **kwargs)
        users = set(program.graph_signature.user_inputs)
        values = [node.meta["val"] for node in program.graph.nodes if node.name in users]
        leaves = {id(leaf): v for leaf, v in zip(leaves_of((args[1], kwargs["kwargs"])), values, strict=False)}
        for (name, axis), dimension in axes.items():
            tensor = asked.tensors()[name]
            size: Any = leaves[id(tensor)].shape[axis]
            if not isinstance(size, int) and is_dynamic(size_range(size.node, program), tensor.shape[axis]):
                found[name, axis] = dimension
        return program

    given, named = exporter_arguments(args, kwargs)
    shapes = dynamic_shapes(asked, dict.fromkeys(axes, torch.export.Dim.AUTO))
    with (
        TORCH_LOCK,
        preserved_state(call.model),
        evaluation_mode(call.model),
        torch.no_grad(),
        # Whatever torch raises, also for the graph: what it said before counts.
        contextlib.suppress(Exception),
        export_through(ask),
    ):
        torch.onnx.export(call.model, given, kwargs=named, dynamo=True, dynamic_shapes=shapes, verbose=False)
    return found


def is_dynamic(limits: SizeRange, size: int) -> bool:
    """Whether an axis of this size may have two other sizes: those that are tried where torch cannot say."""
    larger, smaller = (size + limits.step * pair[-1] for pair in _CHANGES)
    return limits.max is None or larger <= limits.max or (limits.min or 1) <= smaller


def describe_axes(axes: Mapping[Axis, str], call: ExampleCall) -> str:
    """Return the inputs with dynamic axes and their shapes as text."""
    tensors = call.tensors()
    shapes = {name: tensors[name].shape for name, _ in axes}
    named = {name: [str(axes.get((name, axis), n)) for axis, n in enumerate(shape)] for name, shape in shapes.items()}
    return ", ".join(f"{name} {' x '.join(sizes)}" for name, sizes in named.items())
