"""Other inputs for a file, derived from the example inputs: other sizes of its dynamic axes, and other values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
import torch

from modelexport.hierarchy import PROBE, SizeRange
from modelexport.torch_support.private import map_leaves

# In the order in which they are tried. An odd size fits nothing by chance; models with strides take only multiples.
_LARGER: tuple[Callable[[int], int], ...] = (lambda n: 2 * n + 1, lambda n: 2 * n, lambda n: n + 1)
_SMALLER: tuple[Callable[[int], int], ...] = (lambda n: n - 1, lambda n: n // 2)
# The end of a range is tried where it is no further from the example than this, and no longer: attention takes time and
# memory with the square of a length.
_MOST_TIMES, _LONGEST = 64, 2048


class ModelInputs(NamedTuple):
    """The inputs of one call of a model.

    Attributes:
        args: The positional arguments.
        kwargs: The arguments by keyword.
        description: How they differ from the example inputs; empty for these.
        axes: The names of the axes with another size.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    description: str = ""
    axes: tuple[str, ...] = ()


class InputChange(NamedTuple):
    """Inputs to try until the model takes one: those that it refuses say nothing about the file."""

    tries: Sequence[ModelInputs]


def other_values(example: ModelInputs, count: int) -> Iterator[InputChange]:
    """Inputs with other values of the same types and of a like range, each from its own seed."""
    for number in range(1, count + 1):
        # Where the model does not take other integers, such as positions in order, only floats change.
        tries = [_with_other_values(example, number, floats_only=floats_only) for floats_only in (False, True)]
        yield InputChange([inputs for inputs in tries if inputs is not None])


def _with_other_values(example: ModelInputs, number: int, *, floats_only: bool) -> ModelInputs | None:
    generator = torch.Generator().manual_seed(number)
    is_changed = False

    def changed(leaf: Any) -> Any:
        nonlocal is_changed
        is_fixed = not isinstance(leaf, torch.Tensor) or not leaf.numel() or leaf.layout is not torch.strided
        if is_fixed or (floats_only and not leaf.is_floating_point()):
            return leaf
        is_changed = True
        return _drawn(leaf, generator, flipped=number % 2 == 0)

    args, kwargs = map_leaves(changed, (example.args, dict(example.kwargs)))
    return ModelInputs(args, kwargs, f"{PROBE}{number}") if is_changed else None


def _drawn(tensor: torch.Tensor, generator: torch.Generator, *, flipped: bool) -> torch.Tensor:
    """A tensor whose elements are drawn from those of another: ids stay valid, and a mask stays a mask.

    Floats are scaled, and with `flipped` change their sign if both signs occur. Rows of integers that are sorted
    (lengths, positions, masks of padding) stay sorted.
    """
    known = tensor.detach().flatten().cpu()
    if not tensor.is_floating_point() and not tensor.is_complex() and bool((known == known[0]).all()):
        # The nearest other value that is not negative, such as 0 for a mask of ones.
        known = torch.stack([known[0], abs(known[0].to(torch.int64) - 1).to(known.dtype)])
    found = known[torch.randint(len(known), (tensor.numel(),), generator=generator)].reshape(tensor.shape)
    if tensor.is_floating_point():
        both_signs = bool((known < 0).any() and (known > 0).any())
        scale = 0.5 + torch.rand(1, generator=generator).item()
        # The values of a mask stay as they are.
        found = found * (-scale if flipped and both_signs else scale) if len(known.unique()) > 2 else found
    elif tensor.dim() and not tensor.is_complex():
        steps = tensor.to(torch.int64).diff()
        is_falling = bool((steps < 0).any())
        # Not where both occur, or neither.
        found = found.sort(descending=is_falling).values if is_falling is not bool((steps > 0).any()) else found
    return found.to(tensor.device)


class DynamicAxes:
    """The dynamic axes of a graph's inputs, with their sizes in the example inputs.

    Args:
        inputs: The inputs of the graph.
        tensors: The tensors for them, by name.
        example: The example inputs, which contain the tensors.
        ranges: The sizes for which the graph is valid, by the names of axes in the graph.
    """

    def __init__(
        self,
        inputs: Sequence[ir.Value],
        tensors: Mapping[str, torch.Tensor],
        example: ModelInputs,
        ranges: Mapping[str, SizeRange],
    ) -> None:
        self._example = example
        self._ranges = ranges
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
            limits = ranges.get(text, SizeRange())
            self._axes.append(_Axis(tensor, axis, self._independent(text, tensor.shape[axis]), limits))

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
        """A larger and a smaller size of each independent axis, the ends of its range first; then all axes together."""
        larger = {name: self._possible(name, self._limits(name).max, _LARGER) for name in self.sizes}
        smaller = {name: self._possible(name, self._limits(name).min, _SMALLER) for name in self.sizes}
        for name in self.sizes:
            for possible in (larger[name], smaller[name]):
                yield InputChange([self._resized({name: size}) for size in possible])
        # Not the ends of all ranges at once: that can take a thousand times the memory of the example.
        together = {name: self._possible(name, None, _LARGER) for name in self.sizes}
        changed = {name: possible for name, possible in together.items() if possible}
        if len(changed) > 1:
            tries = [{name: found[i % len(found)] for name, found in changed.items()} for i in range(len(_LARGER))]
            yield InputChange([self._resized(sizes) for sizes in tries if self._is_claimed({**self.sizes, **sizes})])

    def outside(self) -> Iterator[tuple[ModelInputs, SizeRange]]:
        """The first sizes beyond the ends of the range of each axis that are not too far, with the range."""
        for name in self.sizes:
            limits = self._limits(name)
            for end, step in ((limits.max, limits.step), (limits.min, -limits.step)):
                if end is not None and 0 < end + step <= self._most(name):
                    yield self._resized({name: end + step}), limits

    def _most(self, name: str) -> int:
        """The largest size to try as the end of a range."""
        return max(self.sizes[name], min(_LONGEST, _MOST_TIMES * self.sizes[name])) + 1

    def _limits(self, name: str) -> SizeRange:
        return self._ranges.get(name, SizeRange())

    def _possible(self, name: str, end: int | None, steps: Iterable[Callable[[int], int]]) -> list[int]:
        """Sizes of an axis that the graph claims to take, other than that of the example."""
        size = self.sizes[name]
        ends = [end] if end is not None and end <= self._most(name) else []
        wanted = dict.fromkeys([*ends, *(step(size) for step in steps)])
        others = [other for other in wanted if other > 0 and other != size]
        return [other for other in others if self._is_claimed({**self.sizes, name: other})]

    def _is_claimed(self, sizes: Mapping[str, int]) -> bool:
        return all(_evaluated(dim, sizes) in limits for _, _, dim, limits in self._axes)

    def _resized(self, sizes: Mapping[str, int]) -> ModelInputs:
        """The inputs with other sizes: elements are repeated, or those at the end are left out."""
        known = {**self.sizes, **sizes}
        changed: dict[int, torch.Tensor] = {}
        for original, axis, dim, _ in self._axes:
            tensor = changed.get(id(original), original)
            changed[id(original)] = _repeated(tensor, axis, _evaluated(dim, known))
        example = (self._example.args, dict(self._example.kwargs))
        args, kwargs = map_leaves(lambda leaf: changed.get(id(leaf), leaf), example)
        return ModelInputs(args, kwargs, ", ".join(f"{name}={size}" for name, size in sizes.items()), tuple(sizes))


def _repeated(tensor: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    if not tensor.shape[axis]:
        return tensor.new_zeros([*tensor.shape[:axis], size, *tensor.shape[axis + 1 :]])
    return tensor.index_select(axis, torch.arange(size, device=tensor.device) % tensor.shape[axis])


class _Axis(NamedTuple):
    tensor: torch.Tensor
    number: int
    size: ir.SymbolicDim | str
    limits: SizeRange


def _evaluated(size: ir.SymbolicDim | str, sizes: Mapping[str, int]) -> int:
    found: Any = sizes[size] if isinstance(size, str) else size.evaluate(sizes)
    return int(found)


def _expression(text: str) -> ir.SymbolicDim | None:
    """The name of an axis as an expression; None where it is only a name."""
    try:
        found = ir.SymbolicDim(text)
        return found if found.free_symbols() else None
    except ValueError:
        return None
