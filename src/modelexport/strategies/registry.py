"""The registry of strategies by name: built-in ones, those of installed plug-ins, and those a program registers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points

from modelexport.display import message_of
from modelexport.errors import InputError, UnknownStrategyError
from modelexport.strategies.base import Strategy
from modelexport.strategies.fx import FxStrategy
from modelexport.strategies.htp import HtpStrategy
from modelexport.strategies.usage_based import UsageBasedStrategy

AUTO = "auto"
ENTRY_POINT_GROUP = "modelexport.strategies"


class StrategyRegistry:
    """Strategies by name, in the order they were registered."""

    def __init__(self, strategies: tuple[Strategy, ...] = ()) -> None:
        self._strategies = {strategy.name: strategy for strategy in strategies}

    def __iter__(self) -> Iterator[Strategy]:
        return iter(self._strategies.values())

    def register(self, name: str, cls: type[Strategy]) -> None:
        """Add a strategy, which ``auto`` tries after the registered ones; it replaces a strategy of the same name.

        Raises:
            InputError: The name is reserved, or the class is not a strategy.
        """
        if name == AUTO or not name:
            raise InputError(f"a strategy cannot be called {name!r}: choose another name")
        given: object = cls  # untyped callers pass anything
        if not (isinstance(given, type) and issubclass(given, Strategy)):
            raise InputError(f"strategy {name!r} is {given!r}: register a subclass of modelexport.Strategy")
        try:
            strategy = cls()
        except TypeError as error:
            raise InputError(f"strategy {name!r} cannot be created without arguments: {message_of(error)}") from error
        if strategy.name != name:
            raise InputError(f"strategy {name!r} has the name {strategy.name!r}: register it under that name")
        self._strategies[name] = strategy

    def get(self, name: str) -> Strategy:
        """The strategy of that name.

        Raises:
            UnknownStrategyError: No strategy has that name.
        """
        strategy = self._strategies.get(name)
        if strategy is None:
            known = ", ".join([AUTO, *self._strategies])
            raise UnknownStrategyError(f"unknown strategy {name!r}: choose one of {known}")
        return strategy


@cache
def default_registry() -> StrategyRegistry:
    """The registry of built-in strategies and those of installed plug-ins."""
    registry = StrategyRegistry((FxStrategy(), HtpStrategy(), UsageBasedStrategy()))
    for entry in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: entry.name):
        try:
            registry.register(entry.name, entry.load())
        except Exception as error:  # noqa: BLE001  a broken plug-in must not break the others
            warnings.warn(
                f"the strategy plug-in {entry.name!r} ({entry.value}) is ignored: {message_of(error)}", stacklevel=2
            )
    return registry


def register_strategy(name: str, cls: type[Strategy]) -> None:
    """Add a strategy to the default registry of this process.

    Args:
        name: The value of ``strategy=`` that selects it; the same as the class's `name`.
        cls: A subclass of `Strategy` that can be created without arguments.

    Raises:
        InputError: The name or class cannot be used.
    """
    default_registry().register(name, cls)
