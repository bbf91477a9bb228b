"""How an export is written: which data files there are, and which tensors read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

import modelexport
from modelexport.exporting.export_writer import staged_export
from modelexport.hierarchy import SCHEMA_VERSION, HierarchyDocument, Producer, TagView
from modelexport.storage import ExporterFile


def test_initializer_of_a_subgraph_reads_the_renamed_data_file(tmp_path: Path) -> None:
    model = _model_with_weights_in_branches()
    document = HierarchyDocument(SCHEMA_VERSION, Producer(), "htp", "torch", "", TagView(), (), (), (), ())
    file = ExporterFile(model.SerializeToString())
    target = tmp_path / "m.onnx"
    with staged_export(model, file, target, external_data=True, overwrite=False, options={}) as staged:
        staged.write_sidecar(document)
        files = staged.commit()
    (data,) = tmp_path.glob("m-*.onnx.data")
    assert set(files) == {target, data, tmp_path / "m_hierarchy.json"}
    written = onnx.load_model(target, load_external_data=False)
    branch = written.graph.node[0].attribute[0].g
    assert [entry.value for entry in branch.initializer[0].external_data if entry.key == "location"] == [data.name]
    session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"condition": np.array(True)})
    np.testing.assert_array_equal(found, np.full(400, 2, np.float32))


def _model_with_weights_in_branches() -> onnx.ModelProto:
    def branch(name: str, value: float) -> onnx.GraphProto:
        weight = numpy_helper.from_array(np.full(400, value, np.float32), f"{name}_weight")
        node = helper.make_node("Identity", [weight.name], [f"{name}_result"])
        output = helper.make_tensor_value_info(f"{name}_result", TensorProto.FLOAT, [400])
        return helper.make_graph([node], name, [], [output], [weight])

    node = helper.make_node(
        "If", ["condition"], ["result"], then_branch=branch("then", 2.0), else_branch=branch("else", 3.0)
    )
    condition = helper.make_tensor_value_info("condition", TensorProto.BOOL, [])
    result = helper.make_tensor_value_info("result", TensorProto.FLOAT, [400])
    graph = helper.make_graph([node], "g", [condition], [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_model_without_large_weights_has_no_data_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    result = modelexport.export_model(torch.nn.ReLU(), torch.ones(1, 2), path, strategy="fx", external_data=True)
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in result.files}
    assert {file.name for file in result.files} == {"m.onnx", "m_hierarchy.json"}
    assert modelexport.load(path).document is not None
