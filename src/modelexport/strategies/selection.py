"""Which strategies to try for a model, in which order and why; and trying them."""

from __future__ import annotations

import dataclasses

import torch

from modelexport.capture import huggingface, torchscript
from modelexport.capture.capture import Capture
from modelexport.errors import AllStrategiesFailedError, InputError, ModelExportError, StrategyIncompatibleError
from modelexport.result import AttemptReport
from modelexport.strategies.base import CaptureRequest, Strategy
from modelexport.strategies.characteristics import ModelCharacteristics, characterize
from modelexport.strategies.registry import AUTO, StrategyRegistry, default_registry


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A strategy worth trying with one of its exporters, and why."""

    strategy: Strategy
    exporter: str
    reason: str


class StrategySelector:
    """Recommends strategies for models, from what there is."""

    def __init__(self, registry: StrategyRegistry | None = None) -> None:
        self._registry = registry if registry is not None else default_registry()

    def recommend(self, model: torch.nn.Module, *, dynamic_shapes: bool = False) -> list[Candidate]:
        """What to try for the model, the best first, each with the reason.

        Strategies are registered in the order of the precision of their evidence. Compiled TorchScript has no Python
        to trace, so strategies that can use its own exporter come first then.
        """
        model_is = characterize(model, dynamic_shapes=dynamic_shapes)
        found = [
            Candidate(strategy, exporter, _reason(number, place, exporter, model_is))
            for number, strategy in enumerate(self._registry)
            for place, exporter in enumerate(strategy.exporters(model))
        ]
        if model_is.is_scripted:
            found.sort(key=lambda candidate: candidate.exporter != torchscript.EXPORTER)
        return found

    def candidates(
        self, name: str, exporter: str | None, model: torch.nn.Module, *, dynamic_shapes: bool = False
    ) -> list[Candidate]:
        """What to try for the strategy of that name, with that exporter if one is given.

        Raises:
            UnknownStrategyError: There is no such strategy.
            InputError: No candidate uses that exporter.
        """
        if name == AUTO:
            found = self.recommend(model, dynamic_shapes=dynamic_shapes)
        else:
            strategy = self._registry.get(name)
            found = [Candidate(strategy, made_by, "asked for by name") for made_by in strategy.exporters(model)]
        if exporter is None:
            return found
        usable = [candidate for candidate in found if candidate.exporter == exporter]
        if not usable:
            known = ", ".join(dict.fromkeys(candidate.exporter for candidate in found))
            raise InputError(f"strategy {name!r} has no exporter {exporter!r} for this model: choose one of {known}")
        return usable


def _reason(number: int, place: int, exporter: str, model_is: ModelCharacteristics) -> str:
    if model_is.is_scripted and exporter == torchscript.EXPORTER:
        return "the model is compiled TorchScript, which has its own exporter"
    if exporter == huggingface.WITH_CACHES:
        return "what torch exports of the model once it knows the caches of transformers"
    if place > 0 and model_is.is_huggingface:
        return "the model is of transformers' classes, whose exporter takes more of them"
    if number == 0:
        return "the most exact record of the calls"
    return "if those before it fail"


def capture_with_first(found: list[Candidate], request: CaptureRequest) -> tuple[Capture, tuple[AttemptReport, ...]]:
    """The capture of the first candidate that serves, with the record of all attempts.

    Raises:
        AllStrategiesFailedError: None of several strategies did.
        StrategyIncompatibleError: The only one did not, with any of its exporters.
        InputError: The inputs do not fit the model, so that trying further is of no use.
    """
    attempts: list[AttemptReport] = []
    failures: list[tuple[Candidate, ModelExportError]] = []
    for candidate in found:
        name, exporter = candidate.strategy.name, candidate.exporter
        try:
            capture = candidate.strategy.capture(dataclasses.replace(request, exporter=exporter))
        except InputError:
            raise
        except ModelExportError as error:
            failures.append((candidate, error))
            attempts.append(AttemptReport(name, exporter, candidate.reason, str(error)))
            continue
        attempts.append(AttemptReport(name, capture.exporter, candidate.reason))
        return capture, tuple(attempts)
    raise _combined(failures) from failures[-1][1].__cause__


def _combined(failures: list[tuple[Candidate, ModelExportError]]) -> ModelExportError:
    if len(failures) == 1:
        return failures[0][1]
    names = {candidate.strategy.name for candidate, _ in failures}
    if len(names) > 1:
        return AllStrategiesFailedError(
            [(f"{candidate.strategy.name} ({candidate.exporter})", error) for candidate, error in failures]
        )
    # One strategy that was asked for by name, with each of its exporters.
    told = [error for _, error in failures if isinstance(error, StrategyIncompatibleError)]
    reason = " ".join(dict.fromkeys(error.reason for error in told))
    return StrategyIncompatibleError(names.pop(), reason, told[-1].suggestion if told else "")
