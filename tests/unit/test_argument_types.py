"""An argument of another type than documented is an error of ours that says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper
from tests.support.hostile_graphs import model

import modelexport
from modelexport.job_results.catalogue import COLUMNS

MODULE = torch.nn.ReLU()
X = torch.ones(3)
CALLS: dict[str, Callable[[Path, Any], object]] = {
    "read_model": lambda _, wrong: modelexport.read_model(wrong),
    "load": lambda _, wrong: modelexport.load(wrong),
    "limits": lambda path, wrong: modelexport.load(path, wrong),
    "ReadLimits": lambda _, wrong: modelexport.ReadLimits(nodes=wrong),
    "RunLimits": lambda _, wrong: modelexport.RunLimits(seconds=wrong),
    "extract_module": lambda path, wrong: modelexport.extract_module(path, wrong),
    "extract_modules": lambda path, wrong: modelexport.extract_modules(path, wrong, path.parent / "out"),
    "extract_modules, folder": lambda path, wrong: modelexport.extract_modules(path, "*", wrong),
    "analyze, selector": lambda path, wrong: modelexport.analyze(path, selector=wrong),
    "analyze, depth": lambda path, wrong: modelexport.analyze(path, depth=wrong),
    "select_calls": lambda _, wrong: modelexport.select_calls(wrong, "*"),
    "select_nodes": lambda _, wrong: modelexport.select_nodes(wrong, "*"),
    "select": lambda path, wrong: modelexport.select(path, wrong),
    "retag": lambda path, wrong: modelexport.retag(wrong, path),
    "tag_file": lambda _, wrong: modelexport.tag_file(wrong, MODULE, X),
    "compare_catalogs, before": lambda _, wrong: modelexport.compare_catalogs(wrong, []),
    "compare_catalogs, row": lambda _, wrong: modelexport.compare_catalogs([], [wrong]),
    "compare_catalogs, fields": lambda _, wrong: modelexport.compare_catalogs([{"job": wrong}], []),
    "compare_catalogs, job": lambda _, wrong: modelexport.compare_catalogs([dict.fromkeys(COLUMNS, wrong)], []),
    "cache_information": lambda _, wrong: modelexport.cache_information(wrong),
    "prune_cache, older_than": lambda path, wrong: modelexport.prune_cache(path.parent, older_than=wrong),
    "load_model": lambda _, wrong: modelexport.load_model(wrong),
    "load_model, options": lambda _, wrong: modelexport.load_model("builtin:bert-tiny", options=wrong),
    "make_example_inputs": lambda _, wrong: modelexport.make_example_inputs(wrong),
    "choose_inputs": lambda _, wrong: modelexport.choose_inputs(wrong),
    "choose_inputs, file": lambda _, wrong: modelexport.choose_inputs(MODULE, file=wrong),
    "verify_modules": lambda _, wrong: modelexport.verify_modules(wrong, MODULE, X),
}


@pytest.mark.parametrize("name", CALLS)
def test_argument_of_another_type_is_our_error(name: str, tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="/a/Relu")
    onnx.save_model(model(node), tmp_path / "model.onnx")
    with pytest.raises(modelexport.InputError):
        CALLS[name](tmp_path / "model.onnx", object())


@pytest.mark.parametrize("name", ["shapes", "texts", "images", "audio"])
@pytest.mark.parametrize("wrong", ["x=1x2", 5, None, [5]])
def test_argument_that_is_not_a_list_of_texts_or_paths_is_our_error_with_its_name(name: str, wrong: Any) -> None:
    with pytest.raises(modelexport.InputError, match=f"^{name} (is|has) an? \\w+: give a list of "):
        modelexport.choose_inputs(MODULE, **{name: wrong})


def test_path_that_no_file_system_takes_is_our_error() -> None:
    for path in ("x" * 5000, "a\0b", "\udc80.onnx", Path("/")):
        with pytest.raises(modelexport.InputError, match="is not a file"):
            modelexport.read_model(path)


def test_path_of_a_hierarchy_that_no_file_system_takes_is_our_error() -> None:
    graph = ir.from_proto(model(helper.make_node("Relu", ["x"], ["y"])))
    for path in ("x" * 5000, "a\0b"):
        with pytest.raises(modelexport.FileFormatError, match="cannot be read"):
            modelexport.extract_module(graph, "", hierarchy=path)


def test_folder_that_no_file_system_takes_is_our_short_error() -> None:
    for folder in ("x" * 5000, "a\0b"):
        with pytest.raises(modelexport.InputError, match="is not a folder: give the cache") as raised:
            modelexport.cache_information(folder)
        assert len(str(raised.value)) < 400
