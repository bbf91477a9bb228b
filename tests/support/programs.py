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

from modelexport.torch_support.example_inputs import normalize_inputs


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
    model, weights = "models/model.json", "data/weights/model_weights_config.json"
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

    def size_that_is_not_python(members: dict[str, bytes]) -> None:
        def change(program: Any) -> None:
            tensor = next(iter(program["graph_module"]["graph"]["tensor_values"].values()))
            tensor["sizes"][0] = {"as_expr": {"expr_str": "(" * 300, "hint": {"as_int": 2}}}

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

    def target_through_another_module(members: dict[str, bytes]) -> None:
        def change(program: Any) -> None:
            first_node(program)["target"] = "torch.sym_int.__globals__"

        edit_json(members, model, change)

    def second_program(members: dict[str, bytes]) -> None:
        members["models/other.json"] = members[model]
        members["data/sample_inputs/other.pt"] = pickled(marker)

    def attribute(members: dict[str, bytes]) -> None:
        name = f'0.a"), {quoteless(code)}, ("'
        members[model] = members[model].replace(b'"0.weight"', json.dumps(name).encode())
        edit_json(members, weights, lambda table: table["config"].update({name: table["config"].pop("0.weight")}))

    changes = (inputs, weight, constant, library, size, size_without_quotes, size_of_a_tensor_called_metadata)
    more = (
        size_that_is_not_python,
        function,
        argument,
        structure,
        target_through_another_module,
        second_program,
        attribute,
    )
    return {change.__name__: change for change in (*changes, *more)}


def quoteless(code: str) -> str:
    """The same code without quotes, which some checks would refuse."""
    return f"exec(bytes([{', '.join(map(str, code.encode()))}]))"


class Branching(torch.nn.Module):
    """Has subgraphs, a dictionary and a text among its inputs, and tensors of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, more: dict[str, torch.Tensor], mode: str) -> torch.Tensor:
        """Adds the inputs up."""
        with torch.no_grad():
            y = self.lin(x)
        z = torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (y,))
        return z + more["a"] if mode == "add" else z


def branching_inputs() -> dict[str, Any]:
    return {"x": torch.ones(2, 4), "more": {"a": torch.ones(2, 4)}, "mode": "add"}


def evil_names(marker: Path) -> dict[str, Callable[[dict[str, bytes]], None]]:
    """Each way in which a name or text in a program of `Branching` would make a folder, once it is part of code."""
    code = f"__import__('os').mkdir('{marker}')"
    inserted = quoteless(code)
    examples = "data/sample_inputs/model.pt"

    def in_program(change: Callable[[Any], None]) -> Callable[[dict[str, bytes]], None]:
        return lambda members: edit_json(members, "models/model.json", change)

    def call(program: Any, operator: str) -> Any:
        nodes = program["graph_module"]["graph"]["nodes"]
        return next(node for node in nodes if node["target"] == f"torch.ops.higher_order.{operator}")

    def replace(program: Any, old: str, new: str) -> None:
        text = json.dumps(program).replace(json.dumps(old), json.dumps(new))
        program.clear()
        program.update(json.loads(text))

    def keyword_of_subgraph_call(program: Any) -> None:
        argument = {"name": f"x={inserted}, y", "arg": {"as_int": 1}, "kind": 2}
        call(program, "wrap_with_set_grad_enabled")["inputs"].append(argument)

    def keyword_of_size_function(program: Any) -> None:
        graph = program["graph_module"]["graph"]
        argument = {"name": f"args={inserted}, y", "arg": {"as_ints": [1, 2]}, "kind": 2}
        outputs = [{"as_sym_int": {"as_name": "total"}}]
        node = {"target": "torch.sym_sum", "inputs": [argument], "outputs": outputs, "metadata": {}}
        graph["nodes"].insert(0, node)
        graph["sym_int_values"]["total"] = {"as_int": 3}

    def function_as_argument(program: Any) -> None:
        arguments = [{"as_bool": False}, {"as_operator": "torch.os.mkdir"}, {"as_string": str(marker)}]
        node = call(program, "wrap_with_set_grad_enabled")
        node["inputs"] = [{"name": "", "arg": argument, "kind": 1} for argument in arguments]

    def any_higher_order_operator(program: Any) -> None:
        call(program, "cond")["target"] = "torch.ops.higher_order.invoke_leaf_function"

    def subgraph_called_as_a_method(program: Any) -> None:
        for argument in call(program, "wrap_with_set_grad_enabled")["inputs"]:
            if "as_graph" in argument["arg"]:
                argument["arg"]["as_graph"]["name"] = "to_folder"

    def parameter_inside_of_the_graph(members: dict[str, bytes]) -> None:
        name = "graph.owning_module.to_folder"
        edit_json(members, "models/model.json", lambda program: replace(program, "lin.weight", name))

        def change(table: Any) -> None:
            table["config"][name] = table["config"].pop("lin.weight")

        edit_json(members, "data/weights/model_weights_config.json", change)

    def placeholder(program: Any) -> None:
        replace(program, "mode", f"mode={inserted}")  # the last one, for it becomes one with a default

    def node(program: Any) -> None:
        program["graph_module"]["graph"]["nodes"][0]["name"] = f"{inserted}; y"

    def output(program: Any) -> None:
        (value,) = program["graph_module"]["graph"]["nodes"][-1]["outputs"]
        replace(program, value["as_tensor"]["name"], f"self.__dict__[{inserted}]")

    def keyword_input(members: dict[str, bytes]) -> None:
        def change(program: Any) -> None:
            signature = program["graph_module"]["module_call_graph"][0]["signature"]
            signature["forward_arg_names"] = None
            protocol, spec = json.loads(signature["in_spec"])
            names = json.loads(spec["children_spec"][1]["context"])
            spec["children_spec"][1]["context"] = json.dumps([*names[:-1], f"{names[-1]}={inserted}"])
            signature["in_spec"] = json.dumps([protocol, spec])

        edit_json(members, "models/model.json", change)

    def example_key(members: dict[str, bytes]) -> None:
        buffer = io.BytesIO()
        inputs = {**branching_inputs(), "more": {f"+str({code})+": torch.ones(2, 4)}}
        torch.save(((), inputs), buffer)
        members[examples] = buffer.getvalue()

    def text_input(program: Any) -> None:
        replace(program, "add", f"add' or {code} or 'add")

    programs = (keyword_of_subgraph_call, keyword_of_size_function, function_as_argument, any_higher_order_operator)
    programs = (*programs, subgraph_called_as_a_method, placeholder, node, output, text_input)
    files = (parameter_inside_of_the_graph, keyword_input, example_key)
    return {**{c.__name__: in_program(c) for c in programs}, **{c.__name__: c for c in files}}
