"""The table of strategies by name."""

from __future__ import annotations

from collections.abc import Iterator

from modelexport.errors import UnknownStrategyError
from modelexport.strategies.base import Strategy
from modelexport.strategies.fx import FxStrategy
from modelexport.strategies.htp import HtpStrategy

AUTO = "auto"


class StrategyRegistry:
    """Strategies by name, in the order they were registered."""

    def __init__(self, strategies: tuple[Strategy, ...] = ()) -> None:
        self._strategies = {strategy.name: strategy for strategy in strategies}

    def __iter__(self) -> Iterator[Strategy]:
        return iter(self._strategies.values())

    def get(self, name: str) -> Strategy:
        """The strategy of that name.

        Raises:
            UnknownStrategyError: There is none.
        """
        strategy = self._strategies.get(name)
        if strategy is None:
            known = ", ".join([AUTO, *self._strategies])
            raise UnknownStrategyError(f"unknown strategy {name!r}: choose one of {known}")
        return strategy


def default_registry() -> StrategyRegistry:
    """The strategies that come with the package."""
    return StrategyRegistry((FxStrategy(), HtpStrategy()))
