"""What the tests of profiles share: profiles of an exported BERT, measured once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from tests.conftest import Exporter

import modelexport

Profiler = Callable[..., modelexport.ProfileReport]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests of these profiles go to one worker, which exports the model once."""
    if "profiled" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.xdist_group("bert"))


@pytest.fixture(scope="session")
def profiled(exported: Exporter) -> Profiler:
    """``profiled(optimization="off")``: measured when first asked for."""

    @cache
    def measure(name: str = "bert", **options: str) -> modelexport.ProfileReport:
        ours = exported(name)
        return modelexport.profile(ours.path, ours.feeds, warmup=1, runs=4, threads=1, **options)

    return measure
