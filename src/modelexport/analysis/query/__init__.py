"""Query one file: selectors, statistics, the analysis report."""

from __future__ import annotations

from modelexport.analysis.query.analysis_report import AnalysisReport, RankedModule, analysis_schema, analyze
from modelexport.analysis.query.node_selection import Selection, select, selection_schema
from modelexport.analysis.query.selector_eval import select_calls
from modelexport.analysis.query.selector_parser import parse_expression
from modelexport.analysis.query.statistics import ModuleStatistics, PrintedTree, count_modules, tree_schema

__all__ = [
    "AnalysisReport",
    "ModuleStatistics",
    "PrintedTree",
    "RankedModule",
    "Selection",
    "analysis_schema",
    "analyze",
    "count_modules",
    "parse_expression",
    "select",
    "select_calls",
    "selection_schema",
    "tree_schema",
]
