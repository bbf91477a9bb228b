"""Encode the document as JSON and decode it; an untrusted sidecar is checked before anything uses it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from modelexport.errors import FileFormatError
from modelexport.hierarchy.calls import ROOT_CALL, CallId
from modelexport.hierarchy.document import SCHEMA_VERSION, CallRecord, HierarchyDocument
from modelexport.hierarchy.modules import MAX_DEPTH, MAX_SIZE, ROOT_PATH, parent_path
from modelexport.hierarchy.schemas import json_schema

_MOST_LISTS = 100_000
_BYTES_PER_LIST = 16


def encode_document(document: HierarchyDocument) -> bytes:
    """The document as indented JSON; the same document always gives the same bytes."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def decode_document(data: bytes, source: str) -> HierarchyDocument:
    """Decode the result of `encode_document`; `source` says in errors where it came from.

    Raises:
        FileFormatError: It is not a hierarchy document, or of another schema version.
    """
    # Decoding makes an object of 56 bytes of every two bytes of a list of empty lists. A document has one list in 20.
    if data.count(b"[") > _MOST_LISTS + len(data) // _BYTES_PER_LIST:
        raise FileFormatError(f"{source} is not a hierarchy document: it consists of lists")
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FileFormatError(f"{source} is not a hierarchy document: {error}") from error
    if head.schema_version != SCHEMA_VERSION:
        raise FileFormatError(
            f"{source} has schema version {head.schema_version}, this release reads {SCHEMA_VERSION}: "
            "export the model again, or use the release that wrote it"
        )
    try:
        document = msgspec.json.decode(data, type=HierarchyDocument)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FileFormatError(f"{source} is not a valid hierarchy document: {error}") from error
    problem = _repeated_key(data, document) or _inconsistency(document)
    if problem is not None:
        raise FileFormatError(f"{source} is not a valid hierarchy document: {problem}")
    return document


def _repeated_key(data: bytes, document: HierarchyDocument) -> str | None:
    """Describe an object with a repeated key, of which parsers keep different values, or None."""
    if encode_document(document) == data:
        # Exactly as `encode_document` writes it. Encoding is much faster than checking each key.
        return None

    def refuse(pairs: list[tuple[str, object]]) -> None:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError(f"an object has a repeated key: {[key for key, _ in pairs][:12]}")

    try:
        json.loads(data, object_pairs_hook=refuse)
    except (ValueError, RecursionError) as error:
        return str(error)
    return None


def _inconsistency(document: HierarchyDocument) -> str | None:
    """Describe why the parts of a document are inconsistent; None if they are consistent."""
    paths = {module.path for module in document.modules}
    if ROOT_PATH not in paths:
        return "it has no root module"
    unattached = next((path for path in paths if (parent_path(path) or ROOT_PATH) not in paths), None)
    if unattached is not None:
        return f"the parent of module {unattached!r} is missing"
    deep = next((path for path in paths if path.count(".") > MAX_DEPTH), None)
    if deep is not None:
        return f"the module {deep[:80]!r}… is nested in more than {MAX_DEPTH} others"
    for module in document.modules:
        for name, info in (*module.parameters.items(), *module.buffers.items()):
            if math.prod(size for size in info.shape if isinstance(size, int)) > MAX_SIZE:
                return f"{name!r} of module {module.path!r} has more than 2^63 elements"
    calls = {call.id: call for call in document.calls}
    if len(calls) < len(document.calls):
        return "it has two calls with the same id"
    for call in document.calls:
        if call.index < 0 or call.id != str(CallId(call.path, call.index)):
            return f"the id of call {call.id!r} is not that of call {call.index} of {call.path!r}"
        if call.path not in paths:
            return f"call {call.id!r} belongs to no module"
        if call.parent is not None and call.parent not in calls:
            return f"the caller of {call.id!r}, {call.parent!r}, is not a call"
    root = calls.get(str(ROOT_CALL))
    if root is not None and root.parent is not None:
        return f"the call of the root module has a caller, {root.parent!r}"
    endless = _endless_call(calls)
    if endless is not None:
        return f"call {endless!r} has more than {MAX_DEPTH} callers, or is its own caller"
    for node in document.nodes:
        unknown = next((name for name in (node.module, *node.contributors, *node.context) if name not in calls), None)
        if unknown is not None:
            return f"node {node.id!r} belongs to {unknown!r}, which is not a call"
    return None


def _endless_call(calls: Mapping[str, CallRecord]) -> str | None:
    """A call whose callers form a cycle or exceed the depth limit."""
    depths: dict[str, int] = {}
    for name in calls:
        path: list[str] = []
        current: str | None = name
        while current is not None and current not in depths:
            path.append(current)
            if len(path) > MAX_DEPTH:
                return name
            current = calls[current].parent
        below = depths[current] if current is not None else 0
        depths.update((passed, depth) for depth, passed in enumerate(reversed(path), start=below + 1))
        if depths[name] > MAX_DEPTH:
            return name
    return None


class _Head(msgspec.Struct):
    schema_version: int


def document_schema() -> dict[str, Any]:
    """The JSON Schema of the sidecar."""
    return json_schema("modelexport hierarchy", HierarchyDocument)
