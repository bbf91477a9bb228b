"""Exporter classes: `export_model` with fixed options."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, final

import torch

from modelexport.exporting.export import export_model
from modelexport.exporting.result import ExportResult
from modelexport.strategies import AUTO, FxStrategy, HtpStrategy, UsageBasedStrategy


class HierarchyExporter:
    """Exports models with fixed options; see `export_model` for the options.

    Args:
        strategy: The strategy; None for the class's own default.
        **options: Further options of `export_model`.
    """

    default_strategy: ClassVar[str] = AUTO

    def __init__(self, strategy: str | None = None, **options: Any) -> None:
        self._options = {"strategy": self.default_strategy if strategy is None else strategy, **options}

    def export(self, model: torch.nn.Module, inputs: object, path: str | Path, **options: Any) -> ExportResult:
        """Export a model; `options` override those of the exporter."""
        return export_model(model, inputs, path, **{**self._options, **options})


@final
class UnifiedExporter(HierarchyExporter):
    """Exports with the first strategy that succeeds."""


@final
class FXHierarchyExporter(HierarchyExporter):
    """Exports with the `fx` strategy."""

    default_strategy = FxStrategy.name


@final
class HTPHierarchyExporter(HierarchyExporter):
    """Exports with the `htp` strategy."""

    default_strategy = HtpStrategy.name


@final
class UsageBasedExporter(HierarchyExporter):
    """Exports with the `usage_based` strategy."""

    default_strategy = UsageBasedStrategy.name
