"""A model before its export, at a glance: what it is like, and what would be tried for it."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from modelexport.hierarchy import json_schema
from modelexport.strategies.characteristics import ModelCharacteristics, characterize
from modelexport.strategies.selection import StrategySelector


class Recommendation(msgspec.Struct, frozen=True):
    """A strategy with one of its exporters, and why it would be tried."""

    strategy: str
    exporter: str
    reason: str


class ModelOverview(msgspec.Struct, frozen=True):
    """What ``modelexport inspect`` shows.

    Attributes:
        model: What the model is called.
        characteristics: What it is like.
        candidates: What an export would try, in order.
        schema_version: The version of this form.
    """

    model: str
    characteristics: ModelCharacteristics
    candidates: tuple[Recommendation, ...]
    schema_version: int = 1


def overlook(name: str, model: torch.nn.Module) -> ModelOverview:
    """Look a model over without running it."""
    candidates = tuple(
        Recommendation(candidate.strategy.name, candidate.exporter, candidate.reason)
        for candidate in StrategySelector().recommend(model)
    )
    return ModelOverview(name, characterize(model), candidates)


def overview_schema() -> dict[str, Any]:
    """The JSON Schema of what ``modelexport inspect --format json`` prints."""
    return json_schema("modelexport inspection", ModelOverview)
