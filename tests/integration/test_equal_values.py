"""Models whose modules compute equal values: the owner is a common caller where values do not decide."""

from __future__ import annotations

import copy
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
import torch
from tests.support import zoo
from tests.support.usage import Confusion, by_usage, stripped
from torch import nn

import modelexport
from modelexport.graph.node_ids import nodes_with_ids

pytestmark = pytest.mark.integration


class Relu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.lin(x))


class Twins(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = Relu()
        self.other = copy.deepcopy(self.one)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) + self.other(x)


class Stages(nn.Module):
    """Layers that return their input: by value, each could be any of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Relu() for _ in range(3)])
        self.scale = nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x) * self.scale
        return x


class Quiet(nn.Module):
    """A linear layer with a zero bias, dropout, and a norm: several operations change no value."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.LayerNorm(8), nn.Identity(), nn.GELU())
        nn.init.zeros_(self.parts[0].bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts(x)


class Numbers(nn.Module):
    """Integers only: their values are not distinctive."""

    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 + 1

    def __init__(self) -> None:
        super().__init__()
        self.odd = self.Odd()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(self.odd(x) > 3, self.odd(x), x)


class Casting(nn.Module):
    """Dropout, then a norm that casts its input to the type it has: two no-ops, one node."""

    class Norm(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.to(torch.float32)
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True))

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = Casting.Norm()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x)

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.drop = nn.Dropout()
        self.layer = self.Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.drop(self.lin(x)))


class Picking(nn.Module):
    """Selects one row, for which the TorchScript exporter writes several nodes; then another module."""

    class Pick(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.tanh()[torch.arange(x.shape[0]), x.sum(-1).argmax(-1)]

    def __init__(self) -> None:
        super().__init__()
        self.pick = self.Pick()
        self.project = nn.Linear(8, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.project(self.pick(x[None]))


@pytest.mark.parametrize(
    ("build", "strategy", "optimize"),
    [
        (Twins, "fx", True),
        *((build, "fx", False) for build in (Twins, Stages, Quiet, Numbers, Casting, Picking)),
        *((build, "htp", True) for build in (Twins, Stages, Quiet, Numbers, Casting, Picking)),
    ],
)
def test_owner_is_a_related_module_where_modules_compute_equal_values(
    build: type[nn.Module], strategy: str, optimize: bool, tmp_path: Path
) -> None:
    x = torch.randint(0, 5, (4, 8)) if build is Numbers else torch.randn(4, 8)
    example = zoo.ExampleModel(build.__name__, build().eval(), x)
    options = {"strategy": strategy, "optimize": optimize, "opset_version": 18 if strategy == "fx" else 16}
    result = modelexport.export_model(example.model, x, tmp_path / "model.onnx", **options)
    graph = stripped(result.onnx_path)
    assert Confusion(example.name, graph, by_usage(graph, example), result.document).unrelated == []


def test_candidates_are_contributors_where_values_do_not_decide(tmp_path: Path) -> None:
    model, x = Twins().eval(), torch.randn(4, 8)
    result = modelexport.export_model(model, x, tmp_path / "model.onnx", strategy="fx", optimize=False)
    graph = stripped(result.onnx_path)
    usage = by_usage(graph, zoo.ExampleModel("twins", model, x))
    found = next(usage.attributions[node] for node in graph.graph if len(node.inputs) == 1)
    assert str(found.owner) == ""
    assert [str(call) for call in found.contributors] == ["one", "other"]
    assert "one, other" in found.reason


def test_inputs_of_a_node_decide_between_equal_values(tmp_path: Path) -> None:
    class Size(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.abs()

    class Mirror(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = Size(), Size()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.one(x) + self.other(-x)

    example = zoo.ExampleModel("mirror", Mirror().eval(), torch.randn(4, 8))
    result = modelexport.export_model(example.model, example.inputs, tmp_path / "model.onnx", strategy="fx")
    graph = stripped(result.onnx_path)
    usage = by_usage(graph, example)
    assert [str(usage.attributions[node].owner) for node in graph.graph] == ["one", "", "other", ""]


def test_consumer_that_reshapes_a_value_is_not_its_producer(tmp_path: Path) -> None:
    """The next layer flattens the output of the activation, which the exporter writes as several nodes."""
    example = zoo.ExampleModel(
        "layers", nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)), torch.randn(2, 3, 8)
    )
    result = modelexport.export_model(
        example.model, example.inputs, tmp_path / "model.onnx", strategy="htp", opset_version=16
    )
    graph = stripped(result.onnx_path)
    found = [by_usage(graph, example).attributions[node] for node in graph.graph]
    assert {str(one.owner) for one in found} == {"0", "1", "2"}
    assert all(one.contributors == () for one in found)


def test_each_call_has_its_own_boundary_tensors_though_all_have_equal_values(tmp_path: Path) -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(8, 8)
            self.gain = nn.Parameter(torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.gain * self.lin(x)

    example = zoo.ExampleModel("gates", nn.Sequential(Gate(), Gate(), Gate()).eval(), torch.randn(4, 8))
    result = modelexport.export_model(example.model, example.inputs, tmp_path / "model.onnx", strategy="fx")
    usage = by_usage(stripped(result.onnx_path), example)
    made = {v.name: str(found.owner) for node, found in usage.attributions.items() for v in node.outputs}
    calls = {str(call.id): call for call in usage.calls}
    assert [made[calls[name].outputs[0].tensor or ""] for name in "012"] == ["0", "1", "2"]
    assert [calls[name].inputs[0].tensor for name in "12"] == [calls[name].outputs[0].tensor for name in "01"]


def test_confidence_in_a_function_is_at_most_that_of_its_callers(tmp_path: Path) -> None:
    example = zoo.ExampleModel("relu", Relu().eval(), torch.randn(4, 8))
    result = modelexport.export_model(example.model, example.inputs, tmp_path / "model.onnx", strategy="fx")
    proto = modelexport.strip_hierarchy(onnx.load(result.onnx_path))
    body = onnx.NodeProto()
    body.CopyFrom(proto.graph.node[-1])
    proto.graph.node[-1].op_type, proto.graph.node[-1].domain = "Act", "local"
    opsets = [*proto.opset_import, onnx.helper.make_opsetid("local", 1)]
    proto.functions.append(
        onnx.helper.make_function("local", "Act", list(body.input), list(body.output), [body], opsets[:1])
    )
    del proto.opset_import[:]
    proto.opset_import.extend(opsets)
    graph = ir.from_proto(proto)
    found = by_usage(graph, example).attributions
    inside = [found[node] for identity, node in nodes_with_ids(graph) if identity.startswith("local")]
    assert [(str(one.owner), one.kind) for one in inside] == [("", "inferred")]
    assert inside[0].confidence < 1


def test_owners_do_not_depend_on_the_order_of_nodes_in_the_file(tmp_path: Path) -> None:
    example = zoo.ExampleModel("numbers", Numbers().eval(), torch.randint(0, 5, (4, 8)))
    result = modelexport.export_model(example.model, example.inputs, tmp_path / "model.onnx", strategy="fx")
    proto = modelexport.strip_hierarchy(onnx.load(result.onnx_path))
    owners = []
    for _ in range(2):
        graph = ir.from_proto(proto)
        usage = by_usage(graph, example)
        owners.append({identity: usage.attributions[node] for identity, node in nodes_with_ids(graph)})
        nodes = list(reversed(proto.graph.node))
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
    assert owners[0] == owners[1]
