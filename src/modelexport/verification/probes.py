"""Other inputs for a file, derived from the example inputs: other sizes of its dynamic axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
import torch

from modelexport.torch_support.private import map_leaves

# In the order in which they are tried. An odd size fits nothing by chance; models with strides take only multiples.
_LARGER: tuple[Callable[[int], int], ...] = (lambda n: 2 * n + 1, lambda n: 2 * n, lambda n: n + 1)
_SMALLER: tuple[Callable[[int], int], ...] = (lambda n: n - 1, lambda n: n // 2)


class ModelInputs(NamedTuple):
    """The inputs of one call of a model.

    Attributes:
        args: The positional arguments.
        kwargs: The arguments by keyword.
        description: How they differ from the example inputs; empty for these.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    description: str = ""


class InputChange(NamedTuple):
    """Inputs to try until the model takes one: those that it refuses say nothing about the file."""

    tries: Sequence[ModelInputs]


class DynamicAxes:
    """The dynamic axes of a graph's inputs, with their sizes in the example inputs.

    Args:
        inputs: The inputs of the graph.
        tensors: The tensors for them, by name.
        example: The example inputs, which contain the tensors.
    """

    def __init__(self, inputs: Sequence[ir.Value], tensors: Mapping[str, torch.Tensor], example: ModelInputs) -> None:
        self._example = example
        # The size of each independent axis.
        self.sizes: dict[str, int] = {}
        self._axes: list[_Axis] = []
        found = [
            (tensors[name], axis, dim.value or f"{name}:{axis}")
            for value in inputs
            if (name := value.name or "") in tensors
            for axis, dim in enumerate(value.shape or ())
            if isinstance(dim, ir.SymbolicDim)
        ]
        # An axis such as `2*height` depends on one that has a name of its own: those come first.
        for tensor, axis, text in sorted(found, key=lambda each: not each[2].isidentifier()):
            self._axes.append(_Axis(tensor, axis, self._independent(text, tensor.shape[axis])))

    def _independent(self, text: str, size: int) -> ir.SymbolicDim | str:
        """The name or expression that determines the size of an axis; new names get their sizes in the example."""
        expression = _expression(text)
        unknown = expression.free_symbols() - self.sizes.keys() if expression is not None else ()
        if expression is None or len(unknown) > 1:
            self.sizes[text] = size
            return text
        for name in unknown:
            values = (value for value in range(1, size + 1) if expression.evaluate({**self.sizes, name: value}) == size)
            self.sizes[name] = next(values, size)
        if expression.evaluate(self.sizes) == size:
            return expression
        # Two axes of one name, and of other sizes in the example.
        own = f"{text}={size}"
        self.sizes[own] = size
        return own

    def changes(self) -> Iterator[InputChange]:
        """A larger and a smaller size of each independent axis, then a larger size of all."""
        for name in self.sizes:
            yield self._change([name], _LARGER)
            yield self._change([name], _SMALLER)
        if len(self.sizes) > 1:
            yield self._change(list(self.sizes), _LARGER)

    def _change(self, names: Sequence[str], steps: Iterable[Callable[[int], int]]) -> InputChange:
        changed = [{name: step(self.sizes[name]) for name in names} for step in steps]
        possible = [sizes for sizes in changed if all(0 < size != self.sizes[name] for name, size in sizes.items())]
        return InputChange([self._resized(sizes) for sizes in possible])

    def _resized(self, sizes: Mapping[str, int]) -> ModelInputs:
        """The inputs with other sizes: elements are repeated, or those at the end are left out."""
        known = {**self.sizes, **sizes}
        changed: dict[int, torch.Tensor] = {}
        for original, axis, dim in self._axes:
            tensor = changed.get(id(original), original)
            size: Any = known[dim] if isinstance(dim, str) else dim.evaluate(known)
            changed[id(original)] = _repeated(tensor, axis, size)
        example = (self._example.args, dict(self._example.kwargs))
        args, kwargs = map_leaves(lambda leaf: changed.get(id(leaf), leaf), example)
        return ModelInputs(args, kwargs, ", ".join(f"{name}={size}" for name, size in sizes.items()))


def _repeated(tensor: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    if not tensor.shape[axis]:
        return tensor.new_zeros([*tensor.shape[:axis], size, *tensor.shape[axis + 1 :]])
    return tensor.index_select(axis, torch.arange(size, device=tensor.device) % tensor.shape[axis])


class _Axis(NamedTuple):
    tensor: torch.Tensor
    number: int
    size: ir.SymbolicDim | str


def _expression(text: str) -> ir.SymbolicDim | None:
    """The name of an axis as an expression; None where it is only a name."""
    try:
        found = ir.SymbolicDim(text)
        return found if found.free_symbols() else None
    except ValueError:
        return None
