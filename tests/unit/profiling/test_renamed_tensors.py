"""Owners of kernels whose tensors onnxruntime renamed, because it changed their memory layout."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from tests.unit.profiling.conftest import Profiler

from modelexport.profiling.renamed_tensors import original_names

TAGGED = """<ir_version: 8, opset_import: ["" : 18]>
g (float[1,8,8,8] x, float[8,8,3,3] w, float[8,8,3,3] v) => (float[1,8,8,8] y)
<float[8,8,3,3] w, float[8,8,3,3] v> {
  c = Conv<pads = [1, 1, 1, 1]>(x, w)
  c_1 = Relu(c)
  d = Conv<pads = [1, 1, 1, 1]>(c_1, v)
  s = Add(d, c_1)
  r = Relu(s)
  y = Sigmoid(r)
}"""


def rewritten(nodes: str, names: list[str]) -> ir.Model:
    text = f"""<ir_version: 8, opset_import: ["" : 18, "layout": 1]>
g (float[1,8,8,8] x, float[8,8,3,3] p, float[8,8,3,3] q) => (float[1,8,8,8] y) {{ {nodes} }}"""
    proto = onnx.parser.parse_model(text)
    for node, name in zip(proto.graph.node, names, strict=True):
        node.name = name
    return ir.from_proto(proto)


def renamed(executed: ir.Model) -> dict[str, str]:
    names = original_names(ir.from_proto(onnx.parser.parse_model(TAGGED)), executed) or {}
    return {str(value.name): name for value, name in names.items() if value.name != name}


def test_name_of_a_node_leads_to_its_tensor_and_to_the_work_of_the_nodes_after_it() -> None:
    executed = rewritten(
        "t0 = layout.Conv(x, p) t1 = layout.Conv(t0, q, t0) t2 = layout.Back(t1) y = Sigmoid(t2)",
        ["c_1_blocked", "d_blocked", "Back", "node_y"],
    )
    # The second does the addition and the activation as well: they need nothing else, and nobody else computes them.
    assert renamed(executed) == {"t0": "c_1", "t1": "r"}


def test_work_that_another_node_does_is_not_counted_twice() -> None:
    executed = rewritten(
        "t0 = layout.Conv(x, p) t1 = layout.Conv(t0, q, t0) t2 = layout.Relu(t1) y = Sigmoid(t2)",
        ["c_1_blocked", "d_blocked", "r_blocked", "node_y"],
    )
    assert renamed(executed) == {"t0": "c_1", "t1": "s", "t2": "r"}


@pytest.mark.parametrize("name", ["unknown_blocked", "x_blocked", "r_blocked", ""])
def test_name_that_data_flow_does_not_confirm_is_not_evidence(name: str) -> None:
    # A node that consumes only a weight computes none of these.
    executed = rewritten("t0 = layout.Conv(p) y = Sigmoid(t0)", [name, "node_y"])
    assert renamed(executed) == {}


def test_tensor_with_its_own_name_after_a_change_of_layout_is_the_one_before_it_too() -> None:
    executed = rewritten(
        "t0 = layout.Conv(x, p) c_1 = layout.Back(t0) r = layout.Rest(c_1, q) y = Sigmoid(r)",
        ["c_1_blocked", "Back", "Rest", "node_y"],
    )
    assert renamed(executed) == {"t0": "c_1"}


def test_layout_of_a_convolutional_model_changes_no_owners(profiled: Profiler) -> None:
    whole, layout = profiled("resnet", optimization="extended"), profiled("resnet", optimization="all")
    assert any("_nchwc" in kernel.name for kernel in layout.kernels)
    calls = [{c for k in report.kernels for c in (k.call, *k.contributors)} for report in (whole, layout)]
    assert calls[0] == calls[1]
    assert all(kernel.kind in ("exact", "fused") for kernel in layout.kernels)
    # Each kernel does the work of a few calls of one block, not of the whole model.
    assert max(len(kernel.contributors) for kernel in layout.kernels) <= 4
