"""Which strategies to try for a model, in which order and why; and trying them."""

from __future__ import annotations

import dataclasses

from modelexport.capture.capture import Capture
from modelexport.errors import AllStrategiesFailedError, InputError, ModelExportError
from modelexport.strategies.base import CaptureRequest, Strategy
from modelexport.strategies.registry import AUTO, StrategyRegistry


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A strategy worth trying, and why."""

    strategy: Strategy
    reason: str


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A strategy that was tried; `error` is None for the one that served."""

    strategy: str
    reason: str
    error: str | None = None


def candidates(name: str, registry: StrategyRegistry) -> list[Candidate]:
    """What to try for a strategy of that name; for ``auto`` all of them in order.

    Raises:
        UnknownStrategyError: There is no such strategy.
    """
    if name != AUTO:
        return [Candidate(registry.get(name), "asked for by name")]
    return [Candidate(strategy, "registered, in order of precision") for strategy in registry]


def capture_with_first(found: list[Candidate], request: CaptureRequest) -> tuple[Capture, tuple[Attempt, ...]]:
    """The capture of the first candidate that serves, with the record of all attempts.

    Raises:
        AllStrategiesFailedError: None of several did.
        StrategyIncompatibleError: The only one did not.
        InputError: The inputs do not fit the model, so that trying further is of no use.
    """
    attempts: list[Attempt] = []
    failures: list[tuple[str, ModelExportError]] = []
    for candidate in found:
        name = candidate.strategy.name
        try:
            capture = candidate.strategy.capture(request)
        except InputError:
            raise
        except ModelExportError as error:
            failures.append((name, error))
            attempts.append(Attempt(name, candidate.reason, str(error)))
            continue
        attempts.append(Attempt(name, candidate.reason))
        return capture, tuple(attempts)
    if len(failures) == 1:
        raise failures[0][1]
    raise AllStrategiesFailedError(failures) from failures[-1][1]
