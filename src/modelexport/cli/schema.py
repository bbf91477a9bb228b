"""`modelexport schema`: the JSON Schema of the sidecar."""

from __future__ import annotations

from modelexport.cli.output import print_json
from modelexport.document import document_schema


def schema() -> None:
    """Print the JSON Schema of the sidecar <model>_hierarchy.json.

    Example:

        modelexport schema > hierarchy.schema.json
    """
    print_json(document_schema())
