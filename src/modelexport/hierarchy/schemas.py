"""JSON Schemas of the documents and reports, generated from their types."""

from __future__ import annotations

from typing import Any

import msgspec

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(title: str, *kinds: Any) -> dict[str, Any]:
    """The schema of one type, or of a choice of several."""
    found, components = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    whole = dict(found[0]) if len(found) == 1 else {"anyOf": list(found)}
    return {"$schema": _DIALECT, "title": title, **whole, **({"$defs": components} if components else {})}


def or_null(schema: Any) -> Any:
    """The schema for JSON in which NaN and infinity are written as null."""
    if isinstance(schema, list):
        return [or_null(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: or_null(part) for key, part in schema.items()}
    return {**changed, "type": ["number", "null"]} if schema.get("type") == "number" else changed
