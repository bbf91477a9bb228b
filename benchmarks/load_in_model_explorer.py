"""Load files of ``view --format model-explorer`` in Model Explorer itself: its Python classes, and its web application.

Model Explorer takes 500 MB, so it is installed apart, in an environment that needs no modelexport:

    python -m venv build/model-explorer
    build/model-explorer/bin/pip install ai-edge-model-explorer playwright
    modelexport view model.onnx -o build/graph.json
    build/model-explorer/bin/python benchmarks/load_in_model_explorer.py build/graph.json build/graph_flops.json

``--schema FILE`` writes the JSON Schema of its classes, which the tests have in tests/data/model_explorer.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import threading
import types
import typing
from importlib.metadata import version
from pathlib import Path
from typing import Any

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
_SECONDS = 60


def schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a type, without fields that it does not have."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        name = kind.__name__
        if name not in definitions:
            definitions[name] = {}
            hints = typing.get_type_hints(kind)
            fields = dataclasses.fields(kind)
            required = [
                field.name
                for field in fields
                if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            ]
            definitions[name] = {
                "type": "object",
                "properties": {field.name: schema_of(hints[field.name], definitions) for field in fields},
                "required": required,
                "additionalProperties": False,
            }
        return {"$ref": f"#/$defs/{name}"}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of(each, definitions) for each in arguments]}
    if origin is list:
        return {"type": "array", "items": schema_of(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(arguments[1], definitions)}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    names = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
    return {"type": names[kind]}


def write_schema(path: Path) -> None:
    """Write the schema of the classes that are installed."""
    from model_explorer.graph_builder import GraphCollection

    definitions: dict[str, Any] = {}
    top = schema_of(GraphCollection, definitions)
    content = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"GraphCollection of ai-edge-model-explorer {version('ai-edge-model-explorer')} (Apache-2.0)",
        **top,
        "$defs": definitions,
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def load_classes(path: Path) -> str:
    """Load a graph file as its classes, strictly; what is in it."""
    from dacite import Config, from_dict
    from model_explorer.graph_builder import GraphCollection

    found = from_dict(GraphCollection, json.loads(path.read_text(encoding="utf-8")), config=Config(strict=True))
    nodes = [node for graph in found.graphs for node in graph.nodes]
    groups = {node.namespace for node in nodes if node.namespace}
    return f"{len(found.graphs)} graphs, {len(nodes)} nodes, {len(groups)} groups"


def load_page(path: Path, node_data: list[Path], port: int, picture: Path | None) -> str:
    """Load a graph file in the web application; what its side panel says."""
    import model_explorer
    from model_explorer import server
    from playwright.sync_api import sync_playwright

    config = model_explorer.config()
    config.add_model_from_path(path=str(path.resolve()), adapterId="builtin_json")
    for file in node_data:
        config.add_node_data_from_path(str(file.resolve()))
    options = {"host": "localhost", "port": port, "config": config, "no_open_in_browser": True, "cors_host": None}
    threading.Thread(target=lambda: server.start(**options, skip_health_check=True), daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.wait_for_timeout(5_000)
        page.goto(f"http://localhost:{port}/?data={config.to_url_param_value()}")
        page.get_by_text("op node count").wait_for(timeout=_SECONDS * 1000)
        page.wait_for_timeout(2_000)
        if picture is not None:
            page.screenshot(path=str(picture))
        text = page.inner_text("body").split()
        browser.close()
    return f"op node count {text[text.index('count') + 1]}, layer count {text[text.index('layer') + 2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", help="A graph, and files of its node data.")
    parser.add_argument("--schema", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--port", type=int, default=8123)
    options = parser.parse_args()
    if options.schema is not None:
        write_schema(options.schema)
    if options.files:
        graph, *node_data = options.files
        print("classes:", load_classes(graph))
        print("page:   ", load_page(graph, node_data, options.port, options.picture), flush=True)
        # Its server has no way to be stopped.
        os._exit(0)


if __name__ == "__main__":
    main()
