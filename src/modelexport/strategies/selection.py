"""Strategy selection: which strategies to try for a model, in which order and why."""

from __future__ import annotations

import dataclasses

import torch

from modelexport.capture import DYNAMO_WITH_CACHES, TORCHSCRIPT
from modelexport.errors import InputError
from modelexport.strategies.base import Strategy
from modelexport.strategies.characteristics import ModelCharacteristics, characterize
from modelexport.strategies.registry import AUTO, StrategyRegistry, default_registry


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A strategy to try with one of its exporters, and the reason."""

    strategy: Strategy
    exporter: str
    reason: str


class StrategySelector:
    """Recommends strategies of a registry for a model."""

    def __init__(self, registry: StrategyRegistry | None = None) -> None:
        self._registry = registry if registry is not None else default_registry()

    def recommend(self, model: torch.nn.Module, *, dynamic_shapes: bool = False) -> list[Candidate]:
        """The candidates for the model, the best first, each with the reason.

        Strategies are registered in the order of the precision of their evidence. Compiled TorchScript has no Python
        code to trace, so for such a model the strategies that use the TorchScript exporter come first.
        """
        traits = characterize(model, dynamic_shapes=dynamic_shapes)
        found = [
            Candidate(strategy, exporter, _reason(rank, position, exporter, traits))
            for rank, strategy in enumerate(self._registry)
            for position, exporter in enumerate(strategy.exporters(model))
        ]
        if traits.is_scripted:
            found.sort(key=lambda candidate: candidate.exporter != TORCHSCRIPT)
        return found

    def candidates(
        self, name: str, exporter: str | None, model: torch.nn.Module, *, dynamic_shapes: bool = False
    ) -> list[Candidate]:
        """The candidates for a strategy name, with that exporter if one is given.

        Raises:
            UnknownStrategyError: No strategy has that name.
            InputError: No candidate uses that exporter.
        """
        if name == AUTO:
            found = self.recommend(model, dynamic_shapes=dynamic_shapes)
        else:
            strategy = self._registry.get(name)
            found = [Candidate(strategy, own, "requested by name") for own in strategy.exporters(model)]
        if exporter is None:
            return found
        usable = [candidate for candidate in found if candidate.exporter == exporter]
        if not usable:
            known = ", ".join(dict.fromkeys(candidate.exporter for candidate in found))
            raise InputError(f"strategy {name!r} has no exporter {exporter!r} for this model: choose one of {known}")
        return usable


def _reason(rank: int, position: int, exporter: str, traits: ModelCharacteristics) -> str:
    if traits.is_scripted and exporter == TORCHSCRIPT:
        return "the model is compiled TorchScript, which has its own exporter"
    if exporter == DYNAMO_WITH_CACHES:
        return "torch's exporter with the cache classes of transformers registered as pytrees"
    if position > 0 and traits.is_huggingface:
        return "the model is a transformers model, and transformers' exporter supports more of those"
    if rank == 0:
        return "it records module calls most precisely"
    return "the fallback if the candidates before it fail"
