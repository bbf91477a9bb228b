"""Place the boxes of a directed graph in layers: edges go down, few of them cross, and long ones bend around boxes.

The steps of Sugiyama's method: layers by the longest path, points for edges that pass layers, the order in each layer
by the mean position of neighbours, positions by the same means without overlaps. Between two layers of boxes is one of
labels, so that no label covers a box or another label. Edges against the direction, which only an invalid graph has,
are drawn from their lower end.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

_SWEEPS = 12
# Between two boxes of a layer, between a box or label and an edge, and between two layers.
_GAP, _POINT_GAP, _LAYER_GAP = 28.0, 10.0, 14.0
_POINT = (4.0, 0.0)
Size = tuple[float, float]
Point = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Layout:
    """The centre of each box, the points that each edge goes through, its label's first, and the size of the whole."""

    centres: list[Point]
    routes: list[list[Point]]
    width: float
    height: float


def lay_out(boxes: Sequence[Size], edges: Sequence[tuple[int, int]], labels: Sequence[Size]) -> Layout:
    """Place boxes and labels.

    Args:
        boxes: The width and height of each box.
        edges: Pairs of boxes.
        labels: The width and height of the label of each edge.
    """
    return _Layering(boxes, edges, labels).layout()


class _Layering:
    def __init__(self, boxes: Sequence[Size], edges: Sequence[tuple[int, int]], labels: Sequence[Size]) -> None:
        self._count = len(boxes)
        self._sizes = list(boxes)
        self._layer = [2 * layer for layer in _longest_paths(self._count, edges)]
        # For each edge its boxes and the points between them, from the upper to the lower; the first is its label.
        self._chains: list[list[int]] = []
        for (one, other), label in zip(edges, labels, strict=True):
            upper, lower = sorted((one, other), key=self._layer.__getitem__)
            passed = range(self._layer[upper] + 1, self._layer[lower])
            points = [self._add_point(layer, _POINT if number else label) for number, layer in enumerate(passed)]
            self._chains.append([upper, *points, lower])
        self._above: list[list[int]] = [[] for _ in self._sizes]
        self._below: list[list[int]] = [[] for _ in self._sizes]
        for chain in self._chains:
            for upper, lower in itertools.pairwise(chain):
                if self._layer[upper] < self._layer[lower]:
                    self._below[upper].append(lower)
                    self._above[lower].append(upper)
        self._layers: list[list[int]] = [[] for _ in range(max(self._layer, default=-1) + 1)]
        for item, layer in enumerate(self._layer):
            self._layers[layer].append(item)
        self._x = [0.0] * len(self._sizes)

    def _add_point(self, layer: int, size: Size) -> int:
        self._layer.append(layer)
        self._sizes.append(size)
        return len(self._sizes) - 1

    def layout(self) -> Layout:
        self._order()
        self._place()
        heights = [max((self._sizes[item][1] for item in layer), default=0.0) for layer in self._layers]
        tops = [0.0, *itertools.accumulate(height + _LAYER_GAP for height in heights)]
        half = [width / 2 for width, _ in self._sizes]
        left = min((x - side for x, side in zip(self._x, half, strict=True)), default=0.0)
        right = max((x + side for x, side in zip(self._x, half, strict=True)), default=0.0)
        points = [(x - left, tops[layer] + heights[layer] / 2) for x, layer in zip(self._x, self._layer, strict=True)]
        routes = [[points[item] for item in chain] for chain in self._chains]
        return Layout(points[: self._count], routes, right - left, max(0.0, tops[-1] - _LAYER_GAP))

    def _order(self) -> None:
        """Order each layer by the mean position of neighbours, downwards and upwards in turn."""
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            neighbours = self._above if down else self._below
            for layer in self._layers if down else reversed(self._layers):
                position = {item: float(place) for row in self._layers for place, item in enumerate(row)}
                layer.sort(key=_mean_by(neighbours, position.__getitem__))

    def _place(self) -> None:
        for layer in self._layers:
            self._pack(layer, [0.0] * len(layer))
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            neighbours = self._above if down else self._below
            wanted = _mean_by(neighbours, self._x.__getitem__)
            for layer in self._layers if down else reversed(self._layers):
                self._pack(layer, [wanted(item) for item in layer])

    def _pack(self, layer: list[int], wanted: Sequence[float]) -> None:
        """Place the items of a layer in order, as near to the wanted positions as their sizes allow.

        Items that would overlap form a block, placed at the mean of what its items want; blocks that touch are merged.
        """
        blocks: list[tuple[float, list[tuple[int, float]]]] = []
        for item, position in zip(layer, wanted, strict=True):
            members, centre = [(item, 0.0)], position
            while blocks and self._overlap(blocks[-1], (centre, members)):
                before, earlier = blocks.pop()
                offset = earlier[-1][1] + self._distance(earlier[-1][0], members[0][0]) - members[0][1]
                size, more = len(earlier), len(members)
                members = [*earlier, *((inner, place + offset) for inner, place in members)]
                centre = (before * size + (centre - offset) * more) / (size + more)
            blocks.append((centre, members))
        for centre, members in blocks:
            for item, place in members:
                self._x[item] = centre + place

    def _overlap(
        self, before: tuple[float, list[tuple[int, float]]], after: tuple[float, list[tuple[int, float]]]
    ) -> bool:
        (left, place), (right, other) = before[1][-1], after[1][0]
        return before[0] + place + self._distance(left, right) > after[0] + other

    def _distance(self, one: int, other: int) -> float:
        gap = _POINT_GAP if one >= self._count or other >= self._count else _GAP
        return (self._sizes[one][0] + self._sizes[other][0]) / 2 + gap


def _mean_by(neighbours: Sequence[Sequence[int]], position: Callable[[int], float]) -> Callable[[int], float]:
    def mean(item: int) -> float:
        around = neighbours[item]
        return sum(map(position, around)) / len(around) if around else position(item)

    return mean


def _longest_paths(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The layer of each box: one below the lowest box with an edge to it; inputs are moved down to their consumers."""
    following: list[list[int]] = [[] for _ in range(count)]
    waiting_for = [0] * count
    for source, target in edges:
        following[source].append(target)
        waiting_for[target] += 1
    layers = [0] * count
    ready = [box for box in range(count) if not waiting_for[box]]
    order: list[int] = []
    while ready:
        box = ready.pop()
        order.append(box)
        for target in following[box]:
            layers[target] = max(layers[target], layers[box] + 1)
            waiting_for[target] -= 1
            if not waiting_for[target]:
                ready.append(target)
    for box in order:
        if layers[box] == 0 and following[box]:
            layers[box] = max(0, min(layers[target] for target in following[box]) - 1)
    return layers
