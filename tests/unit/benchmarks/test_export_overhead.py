"""The limits of the export benchmark."""

from __future__ import annotations

import pytest
from benchmarks.export_overhead import LIMITS, Limits, exceeded

_KEPT = {"plain_s": 1.0, "time_ratio": 1.04, "memory_ratio": 1.001, "checked_s": 2.0, "checked_limit_s": 2.0}


def test_costs_within_the_limits_of_fx_are_accepted() -> None:
    assert (LIMITS["fx"].time, LIMITS["fx"].memory) == (1.05, 1.0)
    assert exceeded(_KEPT, LIMITS["fx"]) == []


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"time_ratio": 1.06}, "time 1.060 > 1.050"),
        ({"memory_ratio": 1.01}, "memory 1.010 > 1.000"),
        ({"checked_s": 2.1}, "time with the check 2.100 > 2.000"),
    ],
)
def test_each_cost_above_its_limit_is_named(changed: dict[str, float], problem: str) -> None:
    assert exceeded({**_KEPT, **changed}, LIMITS["fx"]) == [problem]


def test_constant_cost_counts_more_for_a_short_export() -> None:
    limits = Limits(1.15, 1.0, constant_s=0.08)
    assert exceeded({**_KEPT, "plain_s": 0.02, "time_ratio": 3.0}, limits) == []
    assert exceeded({**_KEPT, "plain_s": 2.0, "time_ratio": 3.0}, limits) == ["time 3.000 > 1.190"]
