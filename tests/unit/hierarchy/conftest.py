"""The published schema of the document."""

from __future__ import annotations

import jsonschema
import pytest

from modelexport.hierarchy.document_codec import document_schema


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = document_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)
