"""Overview of a model before its export: its characteristics, and the strategies that an export would try."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from modelexport.hierarchy import json_schema
from modelexport.strategies.characteristics import ModelCharacteristics, characterize
from modelexport.strategies.selection import StrategySelector


class Recommendation(msgspec.Struct, frozen=True):
    """A strategy with one of its exporters, and the reason to try it."""

    strategy: str
    exporter: str
    reason: str


class ModelOverview(msgspec.Struct, frozen=True):
    """The report of ``modelexport inspect``.

    Attributes:
        model: The name of the model.
        characteristics: Its counts and properties.
        candidates: The strategies that an export would try, in order.
        schema_version: The version of this report's schema.
    """

    model: str
    characteristics: ModelCharacteristics
    candidates: tuple[Recommendation, ...]
    schema_version: int = 1


def describe_model(name: str, model: torch.nn.Module) -> ModelOverview:
    """Describe a model without running it."""
    candidates = tuple(
        Recommendation(candidate.strategy.name, candidate.exporter, candidate.reason)
        for candidate in StrategySelector().recommend(model)
    )
    return ModelOverview(name, characterize(model), candidates)


def overview_schema() -> dict[str, Any]:
    """The JSON Schema of the output of ``modelexport inspect --format json``."""
    return json_schema("modelexport inspection", ModelOverview)
