"""What fuzzing found in untrusted files, each with its own test: refused with words, or read safely and soon."""

from __future__ import annotations

import itertools
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest
from onnx import TensorProto
from tests.conftest import Exporter

import modelexport
from modelexport.analysis.comparison.model_comparison import compare_models
from modelexport.analysis.extraction.extractor import Extractor
from modelexport.analysis.extraction.submodel_files import write_submodel
from modelexport.analysis.query.analysis_report import analyze
from modelexport.analysis.retagging.retagger import retag
from modelexport.analysis.validation.store_repair import repair
from modelexport.analysis.validation.validator import validate
from modelexport.errors import ExtractionError, FileFormatError, InputError
from modelexport.hierarchy.calls import CallId
from modelexport.hierarchy.document_codec import decode_document, encode_document
from modelexport.hierarchy.modules import MAX_DEPTH
from modelexport.storage.metadata_stores import read_doc_string
from modelexport.storage.recovery import find_hierarchy
from modelexport.storage.transaction import sidecar_path

pytestmark = [pytest.mark.regression, pytest.mark.xdist_group("shared_block")]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("onnx_ir")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


@pytest.fixture
def model(exported: Exporter) -> onnx.ModelProto:
    return onnx.load(exported("shared_block").path)


@pytest.fixture
def save(tmp_path: Path) -> Callable[[onnx.ModelProto], Path]:
    def write(model: onnx.ModelProto) -> Path:
        (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
        return tmp_path / "model.onnx"

    return write


Save = Callable[[onnx.ModelProto], Path]


def refused(path: Path, message: str) -> None:
    for reader in (modelexport.load, modelexport.read_model, validate):
        with pytest.raises(FileFormatError, match=message):
            reader(path)


# --- files that two readers take in two ways ---------------------------------------------------------------------


def test_attribute_that_is_there_twice_is_refused(model: onnx.ModelProto, save: Save) -> None:
    node = next(node for node in model.graph.node if node.attribute)
    node.attribute.append(node.attribute[0])
    refused(save(model), "an attribute twice")


@pytest.mark.parametrize("kind", [onnx.AttributeProto.GRAPH, onnx.AttributeProto.INT])
def test_subgraphs_in_an_attribute_of_another_type_are_refused(kind: int, model: onnx.ModelProto, save: Save) -> None:
    attribute = model.graph.node[0].attribute.add(name="extra", type=kind)
    attribute.graphs.add(name="g").node.add(op_type="Relu", input=["x"], output=["hidden"])
    refused(save(model), "an attribute of another type")


def test_function_that_is_there_twice_is_refused(model: onnx.ModelProto, save: Save) -> None:
    for operation in ("Relu", "Neg"):
        function = model.functions.add(name="F", domain="local", input=["x"], output=["y"])
        function.node.add(op_type=operation, input=["x"], output=["y"])
    refused(save(model), "two functions of the same name")


@pytest.mark.parametrize("data_type", [TensorProto.UNDEFINED, 2**31 - 1])
def test_tensor_of_no_known_type_is_refused(data_type: int, model: onnx.ModelProto, save: Save) -> None:
    attribute = model.graph.node[0].attribute.add(name="extra", type=onnx.AttributeProto.TENSOR)
    if data_type:
        attribute.t.data_type = data_type
    refused(save(model), "unknown type")


# --- sidecars that lie -------------------------------------------------------------------------------------------


def changed(exported: Exporter, change: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(encode_document(exported("shared_block").document))
    change(document)
    return json.dumps(document).encode()


def _circle(document: dict[str, Any]) -> None:
    first, second = document["calls"][1:3]
    first["parent"], second["parent"] = second["id"], first["id"]


def _own_caller(document: dict[str, Any]) -> None:
    document["calls"][1]["parent"] = document["calls"][1]["id"]


def _endless(document: dict[str, Any]) -> None:
    call = document["calls"][1]
    calls = [{**call, "index": n, "id": str(CallId(call["path"], n))} for n in range(10, 10 + MAX_DEPTH + 5)]
    for above, below in itertools.pairwise(calls):
        below["parent"] = above["id"]
    document["calls"] += calls


def _twice(document: dict[str, Any]) -> None:
    document["calls"].append(document["calls"][1])


def _misnamed(document: dict[str, Any]) -> None:
    document["calls"][1]["index"] = 7


def _deep_module(document: dict[str, Any]) -> None:
    module = document["modules"][1]
    document["modules"] += [{**module, "path": ".".join(["a"] * n)} for n in range(1, MAX_DEPTH + 3)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_circle, "or is its own"),
        (_own_caller, "or is its own"),
        (_endless, "callers, or is its own caller"),
        (_twice, "two calls with the same id"),
        (_misnamed, "is not that of call 7"),
        (_deep_module, "more than 500 others"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_sidecar_that_no_export_writes_is_refused(
    change: Callable[[dict[str, Any]], None], message: str, exported: Exporter
) -> None:
    with pytest.raises(FileFormatError, match=message):
        decode_document(changed(exported, change), "x")


def test_sidecar_with_a_node_twice_is_not_what_a_file_is_repaired_from(exported: Exporter, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(exported("shared_block").path.read_bytes())
    lie = changed(exported, lambda document: document["nodes"].append(document["nodes"][0]))
    sidecar_path(path).write_bytes(lie)
    with pytest.raises(FileFormatError, match="lists other nodes"):
        modelexport.read_model(path)
    assert repair(path, overwrite=True).origin == "doc_string"
    assert modelexport.read_model(path).document is not None


def test_hierarchy_of_other_nodes_is_refused_by_extraction(exported: Exporter) -> None:
    document = exported("shared_block").document
    less = msgspec.structs.replace(document, nodes=document.nodes[1:])
    with pytest.raises(InputError, match="does not have the nodes"):
        Extractor(exported("shared_block").path, less)


# --- numbers and paths in nodes ----------------------------------------------------------------------------------


def with_doc_string(model: onnx.ModelProto, **fields: object) -> onnx.ModelProto:
    for node in model.graph.node:
        node.doc_string = json.dumps({**json.loads(node.doc_string), **fields})
    return model


@pytest.mark.parametrize("fields", [{"module": "blk@999999999"}, {"hierarchy_path": "/A/B@999999999"}], ids=str)
def test_number_of_a_call_makes_no_calls(fields: dict[str, str], model: onnx.ModelProto, save: Save) -> None:
    path = save(with_doc_string(model, **fields))
    started = time.process_time()
    assert len(Extractor(path).document.calls) < 20
    analyze(path)
    assert time.process_time() - started < 5


def test_number_of_a_call_that_python_does_not_read_is_part_of_the_name() -> None:
    name = "blk@" + "9" * 5000
    assert CallId.parse(name) == CallId(name)
    assert str(CallId.parse(name)) == name


def test_path_of_very_many_modules_says_nothing(model: onnx.ModelProto, save: Save) -> None:
    """Each module around it would be made, with its path: 40,000 of them are 1.6 GB."""
    deep = "x." * 40_000
    assert read_doc_string(json.dumps({**json.loads(model.graph.node[0].doc_string), "module": deep})) is None
    for entry in (entry for node in model.graph.node for entry in node.metadata_props):
        if entry.key == "pkg.modelexport.module":
            entry.value = deep
    model.graph.initializer[0].name = deep
    with_doc_string(model, module=deep)
    path = save(model)
    started = time.process_time()
    with pytest.raises(FileFormatError, match="has no hierarchy"):
        find_hierarchy(modelexport.read_model(path))
    compare_models(path, path)
    assert time.process_time() - started < 5


def test_tag_without_a_slash_says_nothing(model: onnx.ModelProto, save: Save) -> None:
    with pytest.raises(InputError, match="no hierarchy"):
        Extractor(save(with_doc_string(model, hierarchy_path="none")))


# --- text that is not UTF-8, and graphs that are none ------------------------------------------------------------


def test_metadata_that_is_not_utf8_is_kept_by_whoever_only_reads(model: onnx.ModelProto, save: Save) -> None:
    model.metadata_props.add(key="QQQQ", value="x")
    path = save(model)
    path.write_bytes(path.read_bytes().replace(b"QQQQ", b"\xff\xff\xff\xff"))
    file = modelexport.read_model(path)
    assert len(modelexport.strip_hierarchy(file.proto).metadata_props) == len(file.proto.metadata_props) - 2
    assert validate(path).nodes == len(file.nodes)
    submodel = Extractor(path).extract("blk")
    with pytest.raises(ExtractionError, match="cannot be serialized") as caught:
        write_submodel(submodel, path.with_name("sub.onnx"))
    assert caught.value.reason == "invalid_graph"
    assert not path.with_name("sub.onnx").exists()


def test_property_of_ours_that_is_not_utf8_is_none(model: onnx.ModelProto, save: Save) -> None:
    tag = next(entry for entry in model.graph.node[0].metadata_props if entry.key == "pkg.modelexport.tag")
    tag.value = "/QQQQ"
    path = save(model)
    path.write_bytes(path.read_bytes().replace(b"/QQQQ", b"/\xff\xff\xff\xff"))
    assert "stores-agree" in {finding.rule for finding in validate(path).findings}


def test_extraction_refuses_a_graph_that_consumes_a_tensor_no_node_produces(model: onnx.ModelProto, save: Save) -> None:
    del model.graph.node[0]
    with pytest.raises(ExtractionError) as caught:
        Extractor(save(model)).extract("")
    assert caught.value.reason == "invalid_graph"


def test_extraction_sorts_the_nodes_of_a_graph_that_is_not_sorted(model: onnx.ModelProto, save: Save) -> None:
    names = [node.name for node in model.graph.node]
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(nodes[::-1])
    assert [node.name for node in Extractor(save(model)).extract("").model.graph] == names


def test_weight_whose_content_does_not_fit_is_compared(model: onnx.ModelProto, save: Save, exported: Exporter) -> None:
    weight = next(tensor for tensor in model.graph.initializer if len(tensor.dims) == 2)
    weight.ClearField("raw_data")
    assert not compare_models(exported("shared_block").path, save(model)).same


def test_what_is_odd_about_a_model_is_not_printed_in_its_own_words(model: onnx.ModelProto, save: Save) -> None:
    """onnx_ir logs the names of tensors that nothing makes, as they are."""
    model.graph.node[0].input[0] = "\x1b]0;title\x07"
    path = save(model)
    start = [sys.executable, "-c", "from modelexport.cli.main import run; run()"]
    command = ["retag", str(path), "--from", str(path), "-o", str(path.with_name("out.onnx"))]
    run = subprocess.run([*start, *command], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "has no hierarchy to transfer" in run.stderr
    assert "\x1b" not in run.stdout + run.stderr


def test_retag_ignores_an_owner_that_is_not_a_call(exported: Exporter, save: Save, model: onnx.ModelProto) -> None:
    path = save(model)
    sidecar_path(path).write_bytes(changed(exported, _misnamed))
    with pytest.raises(FileFormatError, match="is not that of call 7"):
        retag(exported("shared_block").path, path, path.with_name("out.onnx"))
