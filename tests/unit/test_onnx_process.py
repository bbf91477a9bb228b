"""onnxruntime in a process of its own: results, refusals, deaths, and types that numpy has not."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from modelexport.errors import InputError, OnnxRunError
from modelexport.runtime.process import OnnxProcess, with_outputs


@pytest.fixture(scope="module")
def process() -> Iterator[OnnxProcess]:
    with OnnxProcess() as shared:
        yield shared


def model(*nodes: onnx.NodeProto, kind: int = TensorProto.FLOAT, functions: object = ()) -> onnx.ModelProto:
    """A graph from ``x`` to ``y``, both of any length."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info("x", kind, ["n"])],
        [helper.make_tensor_value_info("y", kind, ["n"])],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, ir_version=10, opset_imports=imports, functions=functions)


DOUBLE = helper.make_node("Add", ["x", "x"], ["y"])


def test_graphs_run_one_after_the_other_in_one_process(process: OnnxProcess) -> None:
    for numbers in ([1, 2], [3.5], []):
        x = np.array(numbers, np.float32)
        found = process.run(model(DOUBLE), {"x": x})
        assert list(found) == ["y"]
        assert np.array_equal(found["y"], x * 2)
        assert found["y"].dtype == np.float32


def test_refusal_is_an_error_with_the_reason_and_the_process_goes_on(process: OnnxProcess) -> None:
    with pytest.raises(OnnxRunError, match="NoSuchOperation"):
        process.run(model(helper.make_node("NoSuchOperation", ["x"], ["y"])), {"x": np.ones(1, np.float32)})
    assert process.run(model(DOUBLE), {"x": np.ones(1, np.float32)})["y"] == [2]


def function_chain(depth: int) -> onnx.ModelProto:
    """Functions that each call the next: deep enough, they exhaust the stack of onnxruntime."""
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    functions = [
        helper.make_function(
            "local",
            f"f{number}",
            ["a"],
            ["b"],
            [
                helper.make_node(f"f{number + 1}", ["a"], ["b"], domain="local")
                if number + 1 < depth
                else helper.make_node("Identity", ["a"], ["b"])
            ],
            imports,
        )
        for number in range(depth)
    ]
    return model(helper.make_node("f0", ["x"], ["y"], domain="local"), functions=functions)


def test_death_of_onnxruntime_is_an_error_and_the_next_graph_runs() -> None:
    with OnnxProcess() as process:
        assert process.run(function_chain(3), {"x": np.ones(1, np.float32)})["y"] == [1]
        with pytest.raises(OnnxRunError, match=r"onnxruntime died of it \(signal SIGSEGV"):
            process.run(function_chain(5000), {"x": np.ones(1, np.float32)})
        assert process.run(model(DOUBLE), {"x": np.ones(1, np.float32)})["y"] == [2]


def test_process_ends_with_the_context() -> None:
    with OnnxProcess() as process:
        process.run(model(DOUBLE), {"x": np.ones(1, np.float32)})
        started = process._started().pid
        os.kill(started, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(started, signal.SIGTERM)


def test_bfloat16_goes_in_and_out_as_float(process: OnnxProcess) -> None:
    kind = TensorProto.BFLOAT16
    narrow = model(helper.make_node("Identity", ["x"], ["y"]), kind=kind)
    x = np.array([1.0, -2.5, 1.00390625], np.float32)
    found = process.run(narrow, {"x": x})
    # The last lies between two numbers of the type.
    assert found["y"].tolist() == [1.0, -2.5, 1.0]
    assert found["y"].dtype == np.float32


def test_weights_in_another_file_are_read_from_its_folder(process: OnnxProcess, tmp_path: Path) -> None:
    stored = model(helper.make_node("Add", ["x", "w"], ["y"]))
    stored.graph.initializer.append(onnx.numpy_helper.from_array(np.full(4000, 3, np.float32), "w"))
    path = tmp_path / "net.onnx"
    onnx.save(stored, path, save_as_external_data=True, location="net.data", size_threshold=0)
    bare = onnx.load(path, load_external_data=False)
    found = process.run(bare, {"x": np.ones(4000, np.float32)}, folder=tmp_path)
    assert np.array_equal(found["y"], np.full(4000, 4, np.float32))


def test_inner_tensors_can_be_asked_for(process: OnnxProcess) -> None:
    chain = ir.from_proto(
        model(helper.make_node("Add", ["x", "x"], ["inner"]), helper.make_node("Neg", ["inner"], ["y"]))
    )
    inner = next(value for node in chain.graph for value in node.outputs if value.name == "inner")
    assert process.run(with_outputs(chain, [inner]), {"x": np.ones(1, np.float32)}).keys() == {"inner"}
    assert [value.name for value in chain.graph.outputs] == ["y"]


def test_missing_onnxruntime_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    # As the import system sees a package that is not there.
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"pip install 'modelexport\[runtime\]'"):
        OnnxProcess()


def test_broken_onnxruntime_is_said_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise OSError('libthing.so: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    with OnnxProcess() as process, pytest.raises(InputError, match=r"cannot be imported \(OSError: libthing"):
        process.run(model(DOUBLE), {"x": np.ones(1, np.float32)})
