"""Compare two model files by module and structure."""

from __future__ import annotations

from modelexport.analysis.comparison.comparison_report import (
    Comparison,
    FieldChange,
    ModuleChange,
    NodeAt,
    NodeChange,
    comparison_schema,
)
from modelexport.analysis.comparison.model_comparison import compare_models

__all__ = [
    "Comparison",
    "FieldChange",
    "ModuleChange",
    "NodeAt",
    "NodeChange",
    "compare_models",
    "comparison_schema",
]
