"""`modelexport schema`: the JSON Schemas of the sidecar and of what commands print."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Annotated, Any

import typer

from modelexport.analysis.comparison import comparison_schema
from modelexport.analysis.findings import validation_schema
from modelexport.analysis.report import analysis_schema
from modelexport.analysis.retagging import retagging_schema
from modelexport.analysis.selection import selection_schema
from modelexport.analysis.submodel_description import extraction_schema
from modelexport.cli.output import print_json
from modelexport.cli.tree import tree_schema
from modelexport.document import document_schema
from modelexport.result import export_schema, tagging_schema


class SchemaName(enum.StrEnum):
    """What there is a schema of."""

    SIDECAR = "sidecar"
    ANALYZE = "analyze"
    COMPARE = "compare"
    EXPORT = "export"
    EXTRACT = "extract"
    INSPECT = "inspect"
    RETAG = "retag"
    SELECT = "select"
    TAG = "tag"
    TREE = "tree"
    VALIDATE = "validate"
    VERIFY = "verify"


def _overview_schema() -> dict[str, Any]:
    from modelexport.strategies.overview import overview_schema  # imports torch

    return overview_schema()


def _verification_schema() -> dict[str, Any]:
    from modelexport.verification.report import verification_schema

    return verification_schema()


_SCHEMAS: dict[SchemaName, Callable[[], dict[str, Any]]] = {
    SchemaName.SIDECAR: document_schema,
    SchemaName.ANALYZE: analysis_schema,
    SchemaName.COMPARE: comparison_schema,
    SchemaName.EXPORT: export_schema,
    SchemaName.EXTRACT: extraction_schema,
    SchemaName.INSPECT: _overview_schema,
    SchemaName.RETAG: retagging_schema,
    SchemaName.SELECT: selection_schema,
    SchemaName.TAG: tagging_schema,
    SchemaName.TREE: tree_schema,
    SchemaName.VALIDATE: validation_schema,
    SchemaName.VERIFY: _verification_schema,
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
