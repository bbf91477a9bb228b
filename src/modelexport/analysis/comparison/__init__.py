"""What differs between two files, by module and structure."""

from __future__ import annotations

from modelexport.analysis.comparison.model_comparison import (
    Comparison,
    FieldChange,
    NodeAt,
    NodeChange,
    compare_models,
    comparison_schema,
)

__all__ = [
    "Comparison",
    "FieldChange",
    "NodeAt",
    "NodeChange",
    "compare_models",
    "comparison_schema",
]
