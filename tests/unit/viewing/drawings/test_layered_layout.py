"""The layout of drawings: edges go down, and no box or label covers another."""

from __future__ import annotations

import itertools
import random

import pytest

from modelexport.viewing.drawings.layered_layout import lay_out


def random_graph(seed: int) -> tuple[list[tuple[float, float]], list[tuple[int, int]], list[tuple[float, float]]]:
    chosen = random.Random(seed)
    count = chosen.randint(2, 30)
    boxes = [(chosen.uniform(20, 200), chosen.uniform(20, 60)) for _ in range(count)]
    edges = [(a, b) for a, b in itertools.combinations(range(count), 2) if chosen.random() < 3 / count]
    return boxes, edges, [(chosen.uniform(0, 150), chosen.choice((0.0, 14.0, 28.0))) for _ in edges]


@pytest.mark.parametrize("seed", range(20))
def test_boxes_and_labels_do_not_overlap_and_edges_go_down(seed: int) -> None:
    boxes, edges, labels = random_graph(seed)
    found = lay_out(boxes, edges, labels)
    placed = [*zip(found.centres, boxes, strict=True)]
    placed += [(route[1], label) for route, label in zip(found.routes, labels, strict=True)]
    for ((x, y), (width, height)), ((other_x, other_y), (other_width, other_height)) in itertools.combinations(
        placed, 2
    ):
        apart = abs(x - other_x) >= (width + other_width) / 2 - 0.01
        below = abs(y - other_y) >= (height + other_height) / 2 - 0.01
        assert apart or below
    for (source, target), route in zip(edges, found.routes, strict=True):
        assert route[0] == found.centres[source]
        assert route[-1] == found.centres[target]
        assert all(one[1] < other[1] for one, other in itertools.pairwise(route))
    for (x, y), (width, height) in placed:
        assert x - width / 2 >= -0.01
        assert x + width / 2 <= found.width + 0.01
        assert y - height / 2 >= -0.01
        assert y + height / 2 <= found.height + 0.01


def test_chain_is_straight() -> None:
    found = lay_out([(50, 20)] * 4, [(0, 1), (1, 2), (2, 3)], [(80, 14)] * 3)
    assert len({round(x, 3) for x, _ in found.centres}) == 1


def test_cycle_of_an_invalid_graph_is_laid_out_too() -> None:
    found = lay_out([(50, 20)] * 3, [(0, 1), (1, 2), (2, 1)], [(0, 0)] * 3)
    assert len(found.centres) == 3


def test_no_boxes_need_no_room() -> None:
    found = lay_out([], [], [])
    assert (found.width, found.height) == (0, 0)
