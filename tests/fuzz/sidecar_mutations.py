"""Mutations of a sidecar: any value in it another, and the lies that only somebody who knows it would tell."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from random import Random
from typing import Any

from tests.fuzz import nasty

Document = dict[str, Any]


def _value(draw: Random) -> Any:
    return draw.choice(
        (
            None,
            True,
            nasty.number(draw),
            draw.choice((0.5, -1.0, 1e308, float("nan"), float("inf"), 2**64, 2**200)),
            nasty.name(draw),
            nasty.name(draw),
            nasty.name(draw),
            [],
            {},
            [nasty.name(draw)],
            {nasty.name(draw): nasty.name(draw)},
            "\ud800",
        )
    )


def _anywhere(draw: Random, document: Document) -> None:
    """Walk down to some place, and put something else there."""
    current: Any = document
    while True:
        keys = list(current) if isinstance(current, dict) else list(range(len(current)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(current[key], dict | list) and current[key] and draw.random() < 0.85:
            current = current[key]
            continue
        how = draw.randrange(5)
        if how == 0:
            del current[key]
        elif how == 1 and isinstance(current, list):
            current.insert(key, current[key])
        elif how == 2 and isinstance(current, dict):
            current[key], other = current[draw.choice(keys)], current[key]
            current[draw.choice(keys)] = other
        elif isinstance(current[key], str):
            current[key] = nasty.name(draw)
        else:
            current[key] = _value(draw)
        return


def _some(draw: Random, document: Document, field: str) -> Any:
    entries = document.get(field)
    return draw.choice(entries) if isinstance(entries, list) and entries else {}


def _parents(draw: Random, document: Document) -> None:
    """Calls that call each other, themselves, the root, nobody."""
    ids = [call.get("id") for call in document.get("calls", [])]
    for _ in range(draw.choice((1, 2, 6))):
        call = _some(draw, document, "calls")
        if draw.random() < 0.2:
            call.pop("parent", None)
        else:
            call["parent"] = draw.choice([*ids, nasty.name(draw)])


def _owners(draw: Random, document: Document) -> None:
    ids = [call.get("id") for call in document.get("calls", [])]
    for _ in range(draw.choice((1, 3))):
        node = _some(draw, document, "nodes")
        how = draw.randrange(5)
        if how == 0:
            node["module"] = draw.choice([*ids, nasty.name(draw)])
        elif how == 1:
            node["contributors"] = [draw.choice(ids) if ids else "" for _ in range(draw.choice((1, 50)))]
        elif how == 2:
            node["confidence"] = draw.choice((-1, 2, 1e308, "high"))
        elif how == 3:
            node["context"] = [draw.choice([*ids, nasty.name(draw)])]
        else:
            node["tag"] = nasty.name(draw)


def _nodes(draw: Random, document: Document) -> None:
    """Nodes that are not there, twice, missing, or under another name."""
    nodes = document.get("nodes")
    if not isinstance(nodes, list) or not nodes:
        return
    how = draw.randrange(5)
    if how == 0:
        nodes.append({**draw.choice(nodes), "id": nasty.name(draw)})
    elif how == 1:
        nodes.append(draw.choice(nodes))
    elif how == 2:
        del nodes[draw.randrange(len(nodes))]
    elif how == 3:
        draw.choice(nodes)["id"] = draw.choice(nodes)["id"]
    else:
        nodes.clear()


def _calls(draw: Random, document: Document) -> None:
    call = _some(draw, document, "calls")
    how = draw.randrange(6)
    if how == 0:
        call["index"] = nasty.number(draw)
    elif how == 1:
        call["id"] = nasty.name(draw)
    elif how == 2:
        call["path"] = _some(draw, document, "modules").get("path", "")
    elif how == 3 and document.get("calls"):
        document["calls"].append(call)
    elif how == 4 and document.get("calls"):
        draw.shuffle(document["calls"])
    else:
        call["tag"] = nasty.name(draw)


def _renamed_module(draw: Random, document: Document) -> None:
    """A module under another name wherever it is spoken of."""
    path = _some(draw, document, "modules").get("path")
    new = nasty.name(draw)
    for module in document.get("modules", []):
        if module.get("path") == path:
            module["path"] = new
    for call in document.get("calls", []):
        if call.get("path") == path:
            call["path"] = call["id"] = new
        if call.get("parent") == path:
            call["parent"] = new
    for node in document.get("nodes", []):
        if node.get("module") == path:
            node["module"] = new


def _modules(draw: Random, document: Document) -> None:
    module = _some(draw, document, "modules")
    how = draw.randrange(7)
    if how == 0:
        module["parameters"] = {"w": {"shape": [2**40, nasty.number(draw)], "dtype": nasty.name(draw)}}
    elif how == 1:
        module["aliases"] = [nasty.name(draw), ""]
    elif how == 2:
        module["children"] = {nasty.name(draw): nasty.name(draw)}
    elif how == 3:
        module["tied_parameters"] = {"weight": nasty.name(draw)}
    elif how == 4:
        module["class_name"] = module["qualified_class"] = nasty.name(draw)
    elif how == 5 and document.get("modules"):
        document["modules"].append(module)
    else:
        module["parameters"] = {"w": {"shape": [1], "dtype": "float" + "9" * draw.choice((1, 50, 5000))}}


def _boundaries(draw: Random, document: Document) -> None:
    tensors = [tensor.get("id") for tensor in document.get("tensors", [])]
    call = _some(draw, document, "calls")
    boundary = [
        {
            "name": nasty.name(draw),
            "tensor": draw.choice([*tensors, nasty.name(draw), None]),
            "info": {"shape": [nasty.number(draw), "s"], "dtype": draw.choice(("float32", nasty.name(draw)))},
            "stand_in": draw.choice([*tensors, nasty.name(draw), None]),
        }
        for _ in range(draw.choice((0, 1, 3)))
    ]
    call[draw.choice(("inputs", "outputs"))] = boundary


def _tensors(draw: Random, document: Document) -> None:
    tensor = _some(draw, document, "tensors")
    key = draw.choice(("id", "producer", "parameter", "axis", "source"))
    tensor[key] = draw.choice((nasty.name(draw), "weight", "input", "node"))
    if draw.random() < 0.3:
        tensor["consumers"] = [nasty.name(draw)]


def _view(draw: Random, document: Document) -> None:
    view = document.get("tag_view")
    if isinstance(view, dict):
        view[draw.choice([*view, "include", "exclude"])] = draw.choice(
            ([nasty.name(draw)], ["*" * 50], ["[" * 20], "all", [], ["*a*a*a*a*a*a*a*a*b" * 5])
        )


MUTATIONS: tuple[Callable[[Random, Document], None], ...] = (
    _anywhere,
    _anywhere,
    _anywhere,
    _parents,
    _owners,
    _nodes,
    _calls,
    _renamed_module,
    _modules,
    _boundaries,
    _boundaries,
    _tensors,
    _view,
)


def mutate_document(draw: Random, data: bytes) -> tuple[bytes, list[str]]:
    """The sidecar with something changed, and the names of what was done."""
    document = json.loads(data)
    chosen = [draw.choice(MUTATIONS) for _ in range(draw.choice((1, 1, 2, 4)))]
    for mutation in chosen:
        # A mutation before this one may have left no list where this one looks for one.
        with contextlib.suppress(AttributeError, TypeError, ValueError, KeyError, IndexError):
            mutation(draw, document)
    return json.dumps(document).encode(), [mutation.__name__.strip("_") for mutation in chosen]


def mutate_text(draw: Random, data: bytes) -> bytes:
    """The sidecar's text made to break parsers of JSON."""
    how = draw.randrange(8)
    at = draw.choice([i for i, c in enumerate(data) if c == ord("{")] or [0]) + 1
    if how == 0:
        return data[:at] + b'"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"," + data[at:]
    if how == 1:
        return data[:at] + b'"nodes": [], ' + data[at:]
    if how == 2:
        return data[:at] + b'"x": NaN, ' + data[at:]
    if how == 3:
        return data[:at] + b'"\\ud800": "\\udc00\\ud800", ' + data[at:]
    if how == 4:
        return data[:at] + b'"x": ' + b"9" * draw.choice((20, 400, 6000)) + b", " + data[at:]
    if how == 5:
        return data[:at] + b'"x": [' + b"{}," * 60_000 + b"{}], " + data[at:]
    if how == 6:
        return b"\xef\xbb\xbf" + data
    return data[:at] + b'"\xff\xfe": 1, ' + data[at:]
