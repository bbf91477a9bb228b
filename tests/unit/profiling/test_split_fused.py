"""How the time of a fused kernel is spread over the calls whose work it does."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from tests.conftest import Exporter

from modelexport.analysis.retagging import project_owners
from modelexport.profiling.ort_profile import OrtProfile
from modelexport.profiling.owners import own_by_graph
from modelexport.profiling.records import Kernel, Measurement
from modelexport.profiling.split_fused import split_shares


def fused_graph(original: onnx.ModelProto, first: onnx.NodeProto, second: onnx.NodeProto) -> ir.Model:
    """The model with two consecutive nodes replaced by one, as an optimizer would."""
    proto = onnx.ModelProto()
    proto.CopyFrom(original)
    nodes = [node for node in original.graph.node if node.name not in (first.name, second.name)]
    others = [name for name in second.input if name not in first.output]
    made = onnx.helper.make_node("Both", [*first.input, *others], list(second.output), name="both", domain="test")
    del proto.graph.node[:]
    proto.graph.node.extend([*nodes, made])
    proto.opset_import.append(onnx.helper.make_opsetid("test", 1))
    model = ir.from_proto(proto)
    model.graph.sort()
    return model


@pytest.mark.parametrize(
    ("seconds", "expected"), [((3.0, 1.0), (0.75, 0.25)), ((1.0, 1.0), (0.5, 0.5)), ((0.0, 0.0), (0.5, 0.5))]
)
def test_fused_kernel_is_split_by_the_times_of_the_nodes_that_it_replaces(
    exported: Exporter, seconds: tuple[float, float], expected: tuple[float, float]
) -> None:
    ours = exported("cnn", optimize=False)
    proto = onnx.load(ours.path)
    owners = {node.id: node for node in ours.document.nodes}
    first, second = next(
        (producer, consumer)
        for producer in proto.graph.node
        for consumer in proto.graph.node
        if producer.output[0] in consumer.input
        and sum(producer.output[0] in node.input for node in proto.graph.node) == 1
        and {owners[node.output[0]].kind for node in (producer, consumer)} == {"exact"}
        and owners[producer.output[0]].module != owners[consumer.output[0]].module
    )
    tagged, executed = ir.from_proto(proto), fused_graph(proto, first, second)
    measured = Kernel(name="both", op="Both", provider="", seconds=(1.0,))
    profile = OrtProfile(Measurement(runtime="", kernels=(measured,), session=(1.0,)), (None,))
    (kernel,) = own_by_graph(profile, executed, project_owners(tagged, ours.document, executed))
    calls = [owners[one.output[0]].module for one in (first, second)]
    assert [kernel.call, *kernel.contributors] == calls[::-1]
    assert kernel.sources == (first.output[0], second.output[0])
    times = dict(zip((first.output[0], second.output[0]), seconds, strict=True))
    shares = split_shares([kernel], ours.document, times)
    assert [shares[0][call] for call in calls] == pytest.approx(expected)
