"""JSON Schemas for tests."""

from __future__ import annotations

from typing import Any


def closed(schema: Any) -> Any:
    """The schema without room for fields that it does not name."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {key: closed(part) for key, part in schema.items()}
    return parts | {"additionalProperties": False} if isinstance(parts.get("properties"), dict) else parts
