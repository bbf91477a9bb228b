"""Small models of PyPI packages that `benchmarks.other_packages` exports, with the axes that a user would want dynamic.

The packages are installed without their dependencies, so each model is imported from the module that needs least.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import nn

# The size of each dimension that has a name.
Sizes = Mapping[str, int]
_MULTIPLE = re.compile(r"(\d+)\*(\w+)")


@dataclasses.dataclass(frozen=True)
class Input:
    """An input tensor.

    Attributes:
        shape: A size for each axis: a number, the name of a dimension, or a multiple of one such as ``256*frames``.
        values: Gives the tensor for a shape and the sizes of all dimensions.
    """

    shape: str
    values: Callable[[tuple[int, ...], Sizes], torch.Tensor]

    def tensor(self, sizes: Sizes) -> torch.Tensor:
        """The input at these sizes."""
        return self.values(tuple(_size(word, sizes) for word in self.shape.split()), sizes)

    def axes(self) -> dict[int, str]:
        """The name of the dimension by axis, for the axes that have one: also for a multiple of it."""
        return {axis: word.rpartition("*")[2] for axis, word in enumerate(self.shape.split()) if _is_named(word)}

    def axis_names(self) -> dict[int, str]:
        """A name for each of these axes: axes of different sizes have different names."""
        return {
            axis: re.sub(r"\W", "_", f"n{word}" if "*" in word else word)
            for axis, word in enumerate(self.shape.split())
            if _is_named(word)
        }


def _is_named(word: str) -> bool:
    return not word.isdecimal()


def _size(word: str, sizes: Sizes) -> int:
    multiple = _MULTIPLE.fullmatch(word)
    if multiple is not None:
        return int(multiple[1]) * sizes[multiple[2]]
    return sizes[word] if _is_named(word) else int(word)


@dataclasses.dataclass(frozen=True)
class PackageModel:
    """A model of a package.

    Attributes:
        package: The name of the distribution on PyPI.
        name: The name of the model.
        field: What it is for.
        build: Creates it.
        inputs: Its inputs, in the order of forward's parameters; None is passed as it is.
        dimensions: The names of the dimensions.
        sizes: The sizes of the example, and three others that PyTorch accepts.
    """

    package: str
    name: str
    field: str
    build: Callable[[], nn.Module]
    inputs: tuple[Input | None, ...]
    dimensions: str
    sizes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]

    def __str__(self) -> str:
        return f"{self.package}:{self.name}"

    def example(self) -> Sizes:
        """The sizes of the example."""
        return self._named(self.sizes[0])

    def others(self) -> list[Sizes]:
        """The other sizes."""
        return [self._named(sizes) for sizes in self.sizes[1:]]

    def _named(self, sizes: tuple[int, ...]) -> Sizes:
        return dict(zip(self.dimensions.split(), sizes, strict=True))

    def model(self) -> nn.Module:
        """The model in evaluation mode, with the same weights every time."""
        torch.manual_seed(0)
        return self.build().eval()

    def args(self, sizes: Sizes) -> tuple[Any, ...]:
        """The inputs at these sizes, with the same values every time."""
        torch.manual_seed(1)
        return tuple(None if given is None else given.tensor(sizes) for given in self.inputs)

    def axes(self) -> list[dict[int, str]]:
        """For each input the dimension by axis."""
        return [{} if given is None else given.axes() for given in self.inputs]

    def named_axes(self, dimensions: Collection[str]) -> list[dict[int, str]]:
        """For each input a name by axis, for the axes of these dimensions."""
        return [
            {axis: name for axis, name in given.axis_names().items() if given.axes()[axis] in dimensions}
            if given is not None
            else {}
            for given in self.inputs
        ]


def made(path: str, *args: Any, **options: Any) -> Callable[[], nn.Module]:
    """Import a class or function, and call it."""
    module, _, name = path.rpartition(".")
    return lambda: getattr(importlib.import_module(module), name)(*args, **options)


def floats(shape: str) -> Input:
    return Input(shape, lambda size, _: torch.randn(size))


def fractions(shape: str) -> Input:
    return Input(shape, lambda size, _: torch.rand(size))


def ids(shape: str, most: int) -> Input:
    return Input(shape, lambda size, _: torch.randint(0, most, size))


def edges(nodes: str) -> Input:
    """Edges of a graph, as pairs of numbers of nodes."""
    return Input("2 edges", lambda size, sizes: torch.randint(0, sizes[nodes], size))


def graph_of_node(shape: str) -> Input:
    """The number of the graph that each node belongs to: the nodes are shared out in order."""
    return Input(shape, lambda size, sizes: torch.arange(size[0]) * sizes["graphs"] // size[0])


def padding(shape: str) -> Input:
    """A mask that is true for the last element of every second row."""

    def values(size: tuple[int, ...], _: Sizes) -> torch.Tensor:
        mask = torch.zeros(size, dtype=torch.bool)
        mask[::2, -1] = True
        return mask

    return Input(shape, values)


def indices(shape: str) -> Input:
    return Input(shape, lambda size, _: torch.arange(size[1]).expand(size).contiguous())


def lengths(shape: str, longest: str) -> Input:
    """The length of each row, from the longest possible down."""
    return Input(shape, lambda size, sizes: sizes[longest] - torch.arange(size[0]))


def image(channels: int = 3) -> tuple[Input]:
    return (floats(f"batch {channels} height width"),)


BATCH, SEQUENCE, IMAGE = "batch", "batch time", "batch height width"
