"""Which axes of the inputs may have other sizes: named by hand, or found by running the model with them."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from modelexport.errors import InputError
from modelexport.torch_support import (
    TORCH_LOCK,
    buffers_restored,
    copied_inputs,
    evaluation_mode,
    named_results,
    preserved_state,
)
from modelexport.torch_support.private import leaves_of, leaves_with_keys, map_leaves, map_leaves_with_keys

AUTO = "auto"
BATCH = "batch"
# How much larger or smaller an axis is tried; both of a pair must do.
_LARGER, _SMALLER = (1, 3), (-1, -2)
_STEPS = (_LARGER, _SMALLER)
_INSTEAD_OF_ONE = 3

# What a caller says: `AUTO`, or for each input the name of the dimension by the number of the axis.
DynamicAxes = str | Mapping[str, Mapping[int, str]]
# An axis of a tensor among the inputs: the tensor's name, and the axis' number.
Axis = tuple[str, int]
_Shapes = list[tuple[str, tuple[int, ...]]]


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a model: its arguments as forward's signature binds them, and the tensors inside by name."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def bound(self) -> dict[str, Any]:
        """The arguments by the names of forward's parameters."""
        return dict(inspect.signature(self.model.forward).bind(*self.args, **self.kwargs).arguments)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors among the arguments, each under the way to it."""
        return {_written(way): leaf for way, leaf in leaves_with_keys(self.bound()) if isinstance(leaf, torch.Tensor)}

    def resized(self, sizes: Mapping[Axis, int]) -> Call:
        """The call with other sizes: what is there is repeated, or the end of it left out."""
        changed: dict[int, torch.Tensor] = {}
        for (name, axis), size in sizes.items():
            original = self.tensors()[name]
            tensor = changed.get(id(original), original)
            taken = torch.arange(size, device=tensor.device) % tensor.shape[axis]
            changed[id(original)] = tensor.index_select(axis, taken)
        return self.replaced(changed)

    def replaced(self, tensors: Mapping[int, torch.Tensor]) -> Call:
        """The call with other tensors, by the identity of those that were there."""
        args, kwargs = map_leaves(lambda leaf: tensors.get(id(leaf), leaf), (self.args, self.kwargs))
        return dataclasses.replace(self, args=args, kwargs=kwargs)

    def result_shapes(self) -> _Shapes | None:
        """The shapes of what the model returns, by name; None where forward fails."""
        with (
            TORCH_LOCK,
            preserved_state(self.model),
            evaluation_mode(self.model),
            buffers_restored(self.model),
            torch.no_grad(),
        ):
            args, kwargs = copied_inputs(self.args, self.kwargs)
            try:
                result = self.model(*args, **kwargs)
            except Exception:  # noqa: BLE001  whatever a forward raises at a size it was not made for
                return None
            return [(name, tuple(tensor.shape)) for name, tensor in named_results(result)]


def _written(way: Iterable[object]) -> str:
    return ".".join(map(str, way))


def check_axes(named: object, call: Call) -> dict[Axis, str]:
    """The axes that are named by hand: for each input the name of the dimension by the number of the axis.

    Raises:
        InputError: They are said in another form, there is no such axis, or it is named twice.
    """
    tensors = call.tensors()
    found: dict[Axis, str] = {}
    for name, axis, dimension in _said(named):
        said = f"the dynamic axis {name}:{axis}={dimension}"
        if name not in tensors:
            raise InputError(f"{said}: there is no input {name!r}; the inputs are {', '.join(tensors) or 'none'}")
        rank = tensors[name].dim()
        if not -rank <= axis < rank:
            raise InputError(f"{said}: {name} has {f'the axes 0 to {rank - 1}' if rank else 'no axes'}")
        place = (name, axis % rank)
        if place in found:
            raise InputError(f"{said}: axis {axis} of {name} is named twice")
        if not dimension.isidentifier():
            raise InputError(f"{said}: {dimension!r} is no name for a dimension; take letters, digits and _")
        found[place] = dimension
    return found


def _said(named: object) -> Iterator[tuple[str, int, str]]:
    """Input, axis and dimension of each axis that is named."""
    for name, axes in named.items() if isinstance(named, Mapping) else [("", named)]:
        for axis, dimension in axes.items() if isinstance(axes, Mapping) else [(axes, None)]:
            if not (isinstance(name, str) and isinstance(axis, int) and isinstance(dimension, str)):
                raise InputError(
                    f"dynamic={named!r} names no axes: give {AUTO!r}, or the dimensions by input and axis, as in "
                    "{'input_ids': {0: 'batch', 1: 'length'}}"
                )
            yield name, axis, dimension


def find_axes(call: Call) -> dict[Axis, str]:
    """The axes that may have other sizes, found by running the model with them; what changes together shares a name.

    Axes of one number and size are tried together, of them those apart that can change alone, and what cannot change so
    alone or with all others of its size. An axis is taken where forward runs at two other sizes and returns tensors of
    the same names and ranks, whose sizes grow with it or stay.
    """
    call = _without_ones(_with_telling_values(call))
    sizes = _sizes(call)
    trial = _Trial(call, sizes)
    left, groups = list(sizes), list[tuple[Axis, ...]]()

    def by_place(axis: Axis) -> tuple[int, ...]:
        return (axis[1], sizes[axis])

    def by_size(axis: Axis) -> tuple[int, ...]:
        return (sizes[axis],)

    for key in (by_place, by_size):
        for _, together in itertools.groupby(sorted(left, key=key), key=key):
            groups += trial.split(tuple(together))
        left = [axis for axis in left if not any(axis in group for group in groups)]
    return _named(groups, sizes)


def _sizes(call: Call) -> dict[Axis, int]:
    return {(name, axis): size for name, t in call.tensors().items() for axis, size in enumerate(t.shape) if size}


def _with_telling_values(call: Call) -> Call:
    """The call with one entry changed where all are equal: a mask that masks nothing may go unused."""
    changed = {}
    for tensor in call.tensors().values():
        same = not tensor.is_floating_point() and tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all())
        if same:
            telling = tensor.clone(memory_format=torch.contiguous_format)
            telling.view(-1)[-1] = int(not telling.view(-1)[-1])
            changed[id(tensor)] = telling
    told = call.replaced(changed)
    return told if told.result_shapes() is not None else call


def _without_ones(call: Call) -> Call:
    """The call with larger sizes where one was and forward takes more: one fits anything, and so it tells nothing."""
    usual = call.result_shapes()
    for number in sorted({axis for (_, axis), size in _sizes(call).items() if size == 1}):
        ones = [place for place, size in _sizes(call).items() if place[1] == number and size == 1]
        # With what else is as the axis is tried: a batch of one may stand beside others that are larger.
        more = call.resized(dict.fromkeys(ones, _INSTEAD_OF_ONE))
        found = more.result_shapes()
        if usual is not None and found is not None and _follows(usual, found, larger=True):
            call, usual = more, found
    return call


class _Trial:
    """Runs of the model at other sizes."""

    def __init__(self, call: Call, sizes: Mapping[Axis, int]) -> None:
        self._call = call
        self._sizes = sizes
        self._usual = call.result_shapes()

    def split(self, group: tuple[Axis, ...]) -> list[tuple[Axis, ...]]:
        """The group as it changes: those that go their own ways, and the others together; nothing where it cannot."""
        if len(group) == 1:
            return [group] if any(self._runs(group, steps) for steps in _STEPS) else []
        # What is longer than it need be may only be cut off: alone is what can be shorter too.
        alone = [(axis,) for axis in group if self._runs((axis,), _LARGER) and self._runs((axis,), _SMALLER)]
        rest = tuple(axis for axis in group if (axis,) not in alone)
        together = [rest] if rest and any(self._runs(rest, steps) for steps in _STEPS) else []
        if rest and not together and any(self._runs(group, steps) for steps in _STEPS):
            return [group]
        return [*together, *alone]

    def _runs(self, group: tuple[Axis, ...], steps: tuple[int, int]) -> bool:
        size = self._sizes[group[0]]
        if self._usual is None or size + min(steps) < 1:
            return False
        for step in steps:
            found = self._call.resized(dict.fromkeys(group, size + step)).result_shapes()
            if found is None or not _follows(self._usual, found, larger=step > 0):
                return False
        return True


def _follows(usual: _Shapes, found: _Shapes, larger: bool) -> bool:
    """Whether results have the same names and ranks, and no axis that went the other way."""
    if [(name, len(shape)) for name, shape in usual] != [(name, len(shape)) for name, shape in found]:
        return False
    pairs = [pair for (_, old), (_, new) in zip(usual, found, strict=True) for pair in zip(old, new, strict=True)]
    return all(new >= old if larger else new <= old for old, new in pairs)


def _named(groups: list[tuple[Axis, ...]], sizes: Mapping[Axis, int]) -> dict[Axis, str]:
    """A name for each axis: `batch` for the first axes where they change together or are all there is of them."""
    first = [group for group in groups if all(axis == 0 for _, axis in group)]
    batches = {group for group in first if len(first) == 1 or len(group) > 1}
    names: dict[Axis, str] = {}
    for group in groups:
        name, axis = group[0]
        named = BATCH if group in batches else re.sub(r"\W", "_", f"{name}_{axis}")
        names |= dict.fromkeys(group, named)
    return {axis: names[axis] for axis in sizes if axis in names}


def widened(call: Call, axes: Iterable[Axis]) -> Call:
    """The call with two where one was on these axes: of a single one torch takes it that there is always one."""
    tensors = call.tensors()
    sizes = {(name, axis): 2 for name, axis in axes if tensors[name].shape[axis] == 1}
    return call.resized(sizes) if sizes else call


def dynamic_shapes(call: Call, axes: Mapping[Axis, Any]) -> dict[str, Any]:
    """The axes as `torch.export` takes them: in the structure of the arguments, in the order they are passed.

    `torch.export` matches the shapes to arguments by name, but `torch.onnx` names the axes by position: the graph's
    inputs, which are in the order of the call, against the entries of this dict.
    """

    def of_leaf(way: tuple[object, ...], leaf: object) -> dict[int, Any] | None:
        if not isinstance(leaf, torch.Tensor):
            return None
        name = _written(way)
        return {axis: dimension for (of, axis), dimension in axes.items() if of == name} or None

    shapes = dict(map_leaves_with_keys(of_leaf, call.bound()))
    positional = inspect.signature(call.model.forward).bind_partial(*call.args).arguments
    # Those that `**kwargs` collects are one entry, under its name, which no argument has.
    return {name: shapes[name] for name in (*positional, *call.kwargs, *shapes) if name in shapes}


def axes_by_input(axes: Mapping[Axis, str]) -> dict[str, dict[int, str]]:
    """The axes as callers say them, and as the TorchScript exporter takes them."""
    found: dict[str, dict[int, str]] = {}
    for (name, axis), dimension in axes.items():
        found.setdefault(name, {})[axis] = dimension
    return found


def axes_torch_keeps(call: Call, axes: Mapping[Axis, str]) -> dict[Axis, str] | None:
    """Those of the axes that `torch.export` leaves open when it may fix them; None where it cannot export the model."""
    wanted = dynamic_shapes(call, dict.fromkeys(axes, torch.export.Dim.AUTO))
    with TORCH_LOCK, preserved_state(call.model), evaluation_mode(call.model), torch.no_grad():
        args, kwargs = copied_inputs(call.args, call.kwargs)
        try:
            program = torch.export.export(call.model, args, kwargs, dynamic_shapes=wanted, strict=False)
        except Exception:  # noqa: BLE001  torch has many ways to refuse
            return None
    inputs = [
        node.meta["val"]
        for node, spec in zip(
            (node for node in program.graph.nodes if node.op == "placeholder"),
            program.graph_signature.input_specs,
            strict=True,
        )
        if spec.kind is torch.export.graph_signature.InputKind.USER_INPUT
    ]
    leaves = leaves_of((call.args, call.kwargs))
    by_leaf = {id(leaf): value for leaf, value in zip(leaves, inputs, strict=False) if isinstance(leaf, torch.Tensor)}
    return {
        (name, axis): dimension
        for (name, axis), dimension in axes.items()
        if not isinstance(by_leaf[id(call.tensors()[name])].shape[axis], int)
    }


def tied_axes(call: Call, axes: Mapping[Axis, str]) -> dict[Axis, str]:
    """The axes with one name for all of one number and size: what forward lets differ, an exporter may not."""
    sizes = _sizes(call)
    names: dict[tuple[int, int], str] = {}
    return {axis: names.setdefault((axis[1], sizes[axis]), name) for axis, name in axes.items()}


def describe_axes(axes: Mapping[Axis, str], call: Call) -> str:
    """The axes in a few words."""
    tensors = call.tensors()
    return ", ".join(_described(tensors[name], name, axes) for name in dict.fromkeys(name for name, _ in axes))


def _described(tensor: torch.Tensor, name: str, axes: Mapping[Axis, str]) -> str:
    sizes = (str(axes.get((name, axis), size)) for axis, size in enumerate(tensor.shape))
    return f"{name} {'x'.join(sizes)}"
