"""Walks over data flow: what lies between two sets of values, and how much work that may take."""

from __future__ import annotations

from modelexport.ownership import VisitBudget, downstream, region

# Each node consumes the values on the left and computes the one that has its name.
DIAMOND = {"a": ("x",), "b": ("a",), "c": ("a",), "d": ("b", "c", "s"), "s": ("y",)}


def between(start: str, stops: set[str], budget: int = 100) -> list[str]:
    def producers(node: str, value: str) -> tuple[str, ...] | None:
        if value in stops:
            return None
        return (value,) if value in DIAMOND else ()

    return region([start], lambda node: DIAMOND[node], producers, VisitBudget(budget))


def test_region_is_every_node_on_a_path_to_its_inputs() -> None:
    assert set(between("d", {"x"})) == {"d", "b", "c", "a"}
    assert set(between("d", {"a"})) == {"d", "b", "c"}


def test_path_that_ends_at_another_input_is_not_in_the_region() -> None:
    assert "s" not in between("d", {"x"})
    assert set(between("d", {"x", "y"})) == set(DIAMOND)


def test_start_is_in_the_region_even_if_no_path_reaches_an_input() -> None:
    assert between("d", {"nothing"}) == ["d"]


def test_walks_end_when_the_budget_is_spent() -> None:
    assert between("d", {"x"}, budget=0) == ["d"]
    consumers = {number: [number + 1] for number in range(1000)}
    assert downstream(0, lambda number: consumers.get(number, []), VisitBudget(10)) == list(range(11))


def test_all_walks_of_a_graph_share_one_budget_that_is_linear_in_its_size() -> None:
    budget = VisitBudget.for_graph(10)
    visits = sum(len(downstream(0, lambda number: [number + 1], budget)) - 1 for _ in range(3))
    assert visits == 32 * 11
