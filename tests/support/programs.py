"""Saved exported programs for the tests, and ways to make bad ones of them."""

from __future__ import annotations

import io
import json
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from modelexport.inputs import normalize_inputs


def save_program(model: torch.nn.Module, inputs: Any, path: Path, **options: Any) -> Path:
    args, kwargs = normalize_inputs(inputs, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(model, args, kwargs, **options), path)
    return path


def rewrite(path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """The archive with its members changed, written as torch writes it."""
    with zipfile.ZipFile(path) as archive:
        folder = archive.namelist()[0].partition("/")[0]
        members = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    change(members)
    changed = path.with_name(f"changed-{path.name}")
    with zipfile.ZipFile(changed, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(f"{folder}/{name}", content)
    return changed


class RunsCode:
    """Unpickled, it makes a folder."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._marker),)


def pickled(marker: Path) -> bytes:
    """What runs code when `torch.load` reads it without restriction."""
    buffer = io.BytesIO()
    torch.save({"args": RunsCode(marker)}, buffer)
    return buffer.getvalue()


def edit_json(members: dict[str, bytes], name: str, change: Callable[[Any], None]) -> None:
    content = json.loads(members[name])
    change(content)
    members[name] = json.dumps(content).encode()


def evil_members(marker: Path) -> dict[str, Callable[[dict[str, bytes]], None]]:
    """Each way in which a file would make a folder when it is loaded or run."""
    model = "models/model.json"
    code = f"__import__('os').mkdir('{marker}')"

    def first_node(program: Any) -> Any:
        return program["graph_module"]["graph"]["nodes"][0]

    def inputs(members: dict[str, bytes]) -> None:
        members["data/sample_inputs/model.pt"] = pickled(marker)

    def weight(members: dict[str, bytes]) -> None:
        def change(table: Any) -> None:
            payload = next(iter(table["config"].values()))
            payload["use_pickle"] = True
            members[f"data/weights/{payload['path_name']}"] = pickled(marker)

        edit_json(members, "data/weights/model_weights_config.json", change)

    def constant(members: dict[str, bytes]) -> None:
        def change(table: Any) -> None:
            table["config"]["c"] = {
                "path_name": "opaque_obj_0",
                "is_param": False,
                "use_pickle": True,
                "tensor_meta": None,
            }

        members["data/constants/opaque_obj_0"] = pickle.dumps(RunsCode(marker))
        edit_json(members, "data/constants/model_constants_config.json", change)

    def library(members: dict[str, bytes]) -> None:
        members["data/aotinductor/model/evil.so"] = b"\x7fELF"

    def size(members: dict[str, bytes]) -> None:
        def change(program: Any) -> None:
            tensor = next(iter(program["graph_module"]["graph"]["tensor_values"].values()))
            tensor["sizes"][0] = {"as_expr": {"expr_str": code, "hint": {"as_int": 2}}}

        edit_json(members, model, change)

    def size_without_quotes(members: dict[str, bytes]) -> None:
        letters = "+".join(f"chr({ord(letter)})" for letter in code)

        def change(program: Any) -> None:
            tensor = next(iter(program["graph_module"]["graph"]["tensor_values"].values()))
            tensor["sizes"][0] = {"as_expr": {"expr_str": f"exec({letters})", "hint": {"as_int": 2}}}

        edit_json(members, model, change)

    def size_of_a_tensor_called_metadata(members: dict[str, bytes]) -> None:
        def change(program: Any) -> None:
            tensors = program["graph_module"]["graph"]["tensor_values"]
            tensor = json.loads(json.dumps(next(iter(tensors.values()))))
            tensor["sizes"][0] = {"as_expr": {"expr_str": code, "hint": {"as_int": 2}}}
            tensors["metadata"] = tensor

        edit_json(members, model, change)

    def function(members: dict[str, bytes]) -> None:
        def change(program: Any) -> None:
            node = first_node(program)
            node["target"] = "torch.os.mkdir"
            node["inputs"] = [{"name": "path", "arg": {"as_string": str(marker)}, "kind": 1}]

        edit_json(members, model, change)

    def argument(members: dict[str, bytes]) -> None:
        def change(program: Any) -> None:
            signature = program["graph_module"]["module_call_graph"][0]["signature"]
            signature["forward_arg_names"] = [f"x={code}"]

        edit_json(members, model, change)

    def structure(members: dict[str, bytes]) -> None:
        def change(program: Any) -> None:
            signature = program["graph_module"]["module_call_graph"][0]["signature"]
            protocol, spec = json.loads(signature["out_spec"])
            made = {"_t": "seq", "p": "os:mkdir", "v": [str(marker)]}
            cache = {"type": "transformers.cache_utils:DynamicCache", "context": json.dumps(made), "children_spec": []}
            signature["out_spec"] = json.dumps([protocol, {**spec, "children_spec": [cache]}])

        edit_json(members, model, change)

    changes = (inputs, weight, constant, library, size, size_without_quotes, size_of_a_tensor_called_metadata)
    return {change.__name__: change for change in (*changes, function, argument, structure)}
