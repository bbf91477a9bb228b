"""Owners of kernels: by name in the executed graph, and by the nodes that a kernel names."""

from __future__ import annotations

import msgspec
import onnx
import onnx_ir as ir
import pytest
from tests.conftest import Exporter
from tests.unit.profiling.conftest import Profiler

from modelexport.analysis.retagging import project_owners
from modelexport.profiling.ort_profile import OrtProfile
from modelexport.profiling.owners import UNMATCHED, own_by_graph, own_by_sources
from modelexport.profiling.records import Kernel, Measurement


def kernel(name: str, op: str, *sources: str) -> Kernel:
    return Kernel(name=name, op=op, provider="", seconds=(1.0,), sources=sources)


def test_kernel_of_several_nodes_is_owned_by_the_last_and_the_others_contribute(exported: Exporter) -> None:
    document = exported("cnn").document
    nodes = [node for node in document.nodes if not node.contributors]
    first = nodes[0]
    last = next(node for node in nodes if node.module != first.module)
    one, both, unknown = own_by_sources(
        document, [kernel("a", "A", first.id), kernel("b", "B", first.id, last.id), kernel("c", "C", "elsewhere")]
    )
    assert (one.call, one.kind, one.contributors) == (first.module, first.kind, ())
    assert (both.call, both.kind, both.contributors) == (last.module, "fused", (first.module,))
    assert (unknown.call, unknown.kind) == ("", UNMATCHED)


def test_unnamed_nodes_are_matched_in_the_order_of_execution_and_unknown_kernels_are_said_to_be(
    exported: Exporter,
) -> None:
    ours = exported("cnn")
    proto = onnx.load(ours.path)
    for node in proto.graph.node:
        node.name = ""
    executed = ir.from_proto(proto)
    kernels = [kernel(f"{node.op_type}_{position}", node.op_type) for position, node in enumerate(executed.graph)]
    kernels.append(kernel("Memcpy_9", "Memcpy"))
    measurement = Measurement(runtime="", kernels=tuple(kernels), session=(1.0,))
    projection = project_owners(ir.from_proto(proto), ours.document, executed)
    owned = own_by_graph(OrtProfile(measurement, (None,) * len(kernels)), executed, projection)
    records = {node.id: node.module for node in ours.document.nodes}
    assert [found.call for found in owned[:-1]] == [records[found.node] for found in owned[:-1]]
    assert [found.node for found in owned[:-1]] == [node.id for node in ours.document.nodes]
    assert (owned[-1].call, owned[-1].kind) == ("", UNMATCHED)


def test_weights_that_onnxruntime_packed_count(exported: Exporter) -> None:
    ours = exported("cnn")
    model = ir.from_proto(onnx.load(ours.path))
    node = next(node for node in model.graph if any(value and value.is_initializer() for value in node.inputs))
    measured = msgspec.structs.replace(kernel(node.name or "", node.op_type), parameter_bytes=0)
    profile = OrtProfile(Measurement(runtime="", kernels=(measured,), session=(1.0,)), (None,))
    (found,) = own_by_graph(profile, model, project_owners(model, ours.document, model))
    weights = [value.const_value for value in node.inputs if value is not None and value.const_value is not None]
    assert found.parameter_bytes == sum(weight.nbytes for weight in weights) > 0


@pytest.mark.xdist_group("bert")
def test_kernels_name_the_nodes_of_the_file_that_they_execute(exported: Exporter, profiled: Profiler) -> None:
    known = [node.id for node in exported("bert").document.nodes]
    plain, optimized = profiled(optimization="off"), profiled()
    assert all(kernel.sources == (kernel.node,) for kernel in plain.kernels)
    named = [source for kernel in optimized.kernels for source in kernel.sources]
    assert set(named) <= set(known)
    # A fused kernel names all nodes whose work it does, and new nodes that change a layout name none.
    assert any(len(kernel.sources) > 1 for kernel in optimized.kernels if kernel.kind == "fused")
