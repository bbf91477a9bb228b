"""`modelexport schema`: the JSON Schemas of the sidecar and of the output of commands."""

from __future__ import annotations

import enum
import importlib
from typing import Annotated, Any

import typer

from modelexport.cli.output import Output, ReportFile, json_text

# The function that returns each schema. Its module is imported only when needed.
_SCHEMAS = {
    "sidecar": "hierarchy:document_schema",
    "analyze": "analysis.query:analysis_schema",
    "batch": "batching:batch_schema",
    "cache": "job_results:cache_schema",
    "catalog": "job_results:catalog_schema",
    "compare": "analysis.comparison:comparison_schema",
    "export": "exporting:export_schema",
    "extract": "analysis.extraction:extraction_schema",
    "inspect": "strategies:overview_schema",
    "profile": "profiling:profile_schema",
    "profile-comparison": "profiling:profile_comparison_schema",
    "profile-static": "profiling.static_cost:static_schema",
    "repair": "analysis.validation:repair_schema",
    "retag": "analysis.retagging:retagging_schema",
    "select": "analysis.query:selection_schema",
    "tag": "exporting:tagging_schema",
    "tree": "analysis.query:tree_schema",
    "validate": "analysis:validation_schema",
    "verify": "analysis:verification_schema",
    "view": "viewing:page_schema",
}
SchemaName = enum.StrEnum("SchemaName", {name.upper().replace("-", "_"): name for name in _SCHEMAS})  # type: ignore[misc]  # from the table


def schema(
    *,
    name: Annotated[
        SchemaName, typer.Argument(help="The sidecar, or a command with JSON output.")
    ] = SchemaName.SIDECAR,  # type: ignore[attr-defined]  # from the table
    report: ReportFile,
    out: Output,
) -> None:
    """Print the JSON Schema of the sidecar file or of a command's JSON.

    Examples:

        modelexport schema > hierarchy.schema.json

        modelexport schema analyze -o analysis.schema.json
    """
    report.check()
    module, _, function = _SCHEMAS[name.value].partition(":")
    content: dict[str, Any] = getattr(importlib.import_module(f"modelexport.{module}"), function)()
    report.write(json_text(content), out)
