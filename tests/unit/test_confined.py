"""The ONNX checker and shape inference on a file that keeps them busy without end: a finding, and no more."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from modelexport.analysis import confined
from modelexport.analysis.confined import examine
from modelexport.analysis.validation import validate


def function_chain(length: int) -> onnx.ModelProto:
    """Functions that each call the next one: as deep as it is long for whoever follows by recursion."""
    functions = [
        helper.make_function(
            "local",
            f"F{number}",
            ["x"],
            ["y"],
            [
                helper.make_node(f"F{number + 1}", ["x"], ["y"], domain="local")
                if number + 1 < length
                else helper.make_node("Relu", ["x"], ["y"])
            ],
            [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)],
        )
        for number in range(length)
    ]
    graph = helper.make_graph(
        [helper.make_node("F0", ["x"], ["y"], domain="local")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=10)


def function_bomb(length: int) -> onnx.ModelProto:
    """Functions that call the next one twice: within our limit of nodes, and more than inference can follow."""
    model = function_chain(length)
    for function in model.functions[:-1]:
        call = function.node[0]
        again = helper.make_node(call.op_type, ["y0"], ["y"], domain="local")
        call.output[0] = "y0"
        function.node.append(again)
    return model


def test_good_file_is_examined_with_its_types(tmp_path: Path) -> None:
    model = function_chain(3)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    found = examine(path, model)
    assert (found.checker, found.shapes) == ("", "")
    assert found.inferred is not None
    assert [value.name for value in found.inferred.output] == ["y"]


def test_file_that_keeps_shape_inference_busy_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined, "_CPU_SECONDS", 2)
    model = function_bomb(24)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    report = validate(path)
    found = {finding.rule: finding.message for finding in report.findings}
    assert "it ended the process that looked at it (it took more time than it may)" in found["shape-inference"]
    assert not report.is_valid
