"""What selectors pick, evaluated in Python: the cases that the selectors of the page are tested against.

``python -m tests.support.selector_cases OUT FILE...`` writes them with the data of a page of each file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import modelexport
from modelexport.viewing.file_view import view
from modelexport.viewing.page_builder import page_json

# Of any model: the syntax, errors, and patterns that match in most. Names in braces are replaced by those of the model.
PATTERNS = (
    '""',
    "**",
    "*",
    "* or **",
    "not *",
    "not **",
    "** and not *",
    "{contributor}",
    "not {contributor}",
    "{path}",
    "path:{path}",
    '"{path}"',
    "'{path}'",
    "{path} or {other}",
    "{path} and not {path}",
    "{path} and class:*",
    "{path}.*",
    "{path}.**",
    "**.{last}",
    "**.{last}.**",
    "{prefix}*",
    "{path}@0",
    "{path}@1",
    "call:{call}",
    "call:{path}@0",
    "{tag}",
    "tag:{tag}",
    "{tag}/**",
    "/**",
    "/*",
    "tag:*",
    "class:{class}",
    "class:{class_prefix}*",
    "class:torch.nn.*",
    'class:"{class}"',
    "class:*.{class}",
    "class:[!L]*",
    "class:[A-K]*",
    "class:?*",
    "op:{op}",
    "op:*",
    "op:{op_prefix}*",
    "not op:{op}",
    "op:{op} and {path}",
    "op:{op} or kind:fused",
    "kind:exact",
    "kind:fused or kind:merged",
    "kind:inferred",
    "not kind:exact",
    "kind:ex*",
    "node:{node}",
    "node:{node_prefix}*",
    'node:"{node}"',
    "({path} or {other}) and op:{op}",
    "not ({path} or {other})",
    "not not {path}",
    "({path}",
    "{path})",
    "{path} {other}",
    "and",
    "{path} and",
    "not",
    "()",
    "''",
    "'unclosed",
    "no.such.module",
    "{misspelled}",
    "class:NoSuchClass",
    "op:NoSuchOperator",
    "kind:other",
    "colour:red",
    "path:",
    "op:",
    "class:Linear or no.such.module",
    "encoder.layer",
    "**.[0-9]",
    "**.[!0-9]*",
    '"a\\"b"',
    "   ",
)


def cases_of(path: Path) -> dict[str, Any]:
    """The data of a page of one file, and what each selector picks there."""
    shown = view(path)
    document = _document(path)
    return {
        "name": path.stem,
        "page": json.loads(page_json(shown.data)),
        "cases": [_case(document, pattern) for pattern in dict.fromkeys(_patterns(document))],
    }


def _document(path: Path) -> modelexport.HierarchyDocument:
    from modelexport.storage.recovery import find_hierarchy

    return find_hierarchy(modelexport.read_model(path)).document


def _patterns(document: modelexport.HierarchyDocument) -> Iterable[str]:
    owners = {node.module for node in document.nodes}
    called = [call for call in document.calls if call.path and call.id in owners]
    middle, last = called[len(called) // 2], called[-1]
    classes = {module.path: module.class_name for module in document.modules}
    node = document.nodes[len(document.nodes) // 2]
    names = {
        "path": middle.path,
        "other": called[0].path,
        "last": last.path.rpartition(".")[2],
        "prefix": middle.path[:3],
        "call": last.id,
        "tag": middle.tag,
        "class": classes[middle.path],
        "class_prefix": classes[middle.path][:3],
        "op": node.op,
        "op_prefix": node.op[:2],
        "node": node.id,
        "node_prefix": node.id[:3],
        "contributor": next((call for node in document.nodes for call in node.contributors if call), called[0].path),
        "misspelled": f"{middle.path}x",
    }
    return (pattern.format(**names) for pattern in PATTERNS)


def _case(document: modelexport.HierarchyDocument, pattern: str) -> dict[str, Any]:
    """The ids of what a selector picks, or the text of the error: as calls, as nodes, and as nodes of owners only."""

    def outcome(evaluate: Callable[[], Iterable[Any]]) -> dict[str, Any]:
        try:
            return {"ids": [found.id for found in evaluate()]}
        except modelexport.SelectorError as error:
            return {"error": str(error)}

    return {
        "selector": pattern,
        "calls": outcome(lambda: modelexport.select_calls(document, pattern)),
        "nodes": outcome(lambda: modelexport.select_nodes(document, pattern)),
        "owned": outcome(lambda: modelexport.select_nodes(document, pattern, contributors=False)),
    }


def write_cases(target: Path, files: Iterable[Path]) -> None:
    """Write the cases of some files as JSON."""
    target.write_text(json.dumps([cases_of(path) for path in files], ensure_ascii=True), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    given = parser.parse_args()
    write_cases(given.target, given.files)
