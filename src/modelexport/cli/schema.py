"""`modelexport schema`: the JSON Schemas of the sidecar and of what commands print."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Annotated, Any

import typer

from modelexport.analysis.comparison import comparison_schema
from modelexport.analysis.report import analysis_schema
from modelexport.analysis.selection import selection_schema
from modelexport.cli.output import print_json
from modelexport.document import document_schema


class SchemaName(enum.StrEnum):
    """What there is a schema of."""

    SIDECAR = "sidecar"
    ANALYZE = "analyze"
    COMPARE = "compare"
    SELECT = "select"


_SCHEMAS: dict[SchemaName, Callable[[], dict[str, Any]]] = {
    SchemaName.SIDECAR: document_schema,
    SchemaName.ANALYZE: analysis_schema,
    SchemaName.COMPARE: comparison_schema,
    SchemaName.SELECT: selection_schema,
}


def schema(
    name: Annotated[SchemaName, typer.Argument(help="The sidecar, or the command whose JSON is meant.")] = (
        SchemaName.SIDECAR
    ),
) -> None:
    """Print a JSON Schema: of the sidecar <model>_hierarchy.json, or of a command's --format json.

    Examples:

        modelexport schema > hierarchy.schema.json

        modelexport schema analyze > analysis.schema.json
    """
    print_json(_SCHEMAS[name]())
