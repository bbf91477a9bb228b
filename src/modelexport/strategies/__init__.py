"""Strategies: how an export collects its evidence, the registry of strategies, and the selection among them."""

from __future__ import annotations

from modelexport.strategies.attempts import DEFAULT_TIMEOUT, Attempts
from modelexport.strategies.base import CaptureRequest, Strategy
from modelexport.strategies.characteristics import ModelCharacteristics
from modelexport.strategies.dynamic_capture import Captured, capture_model
from modelexport.strategies.fx import FxStrategy
from modelexport.strategies.htp import HtpStrategy
from modelexport.strategies.overview import describe_model, overview_schema
from modelexport.strategies.registry import AUTO, StrategyRegistry, register_strategy
from modelexport.strategies.selection import Candidate, StrategySelector
from modelexport.strategies.usage_based import UsageBasedStrategy

__all__ = [
    "AUTO",
    "DEFAULT_TIMEOUT",
    "Attempts",
    "Candidate",
    "CaptureRequest",
    "Captured",
    "FxStrategy",
    "HtpStrategy",
    "ModelCharacteristics",
    "Strategy",
    "StrategyRegistry",
    "StrategySelector",
    "UsageBasedStrategy",
    "capture_model",
    "describe_model",
    "overview_schema",
    "register_strategy",
]
