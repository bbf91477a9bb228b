"""The outputs of a file are compared with what PyTorch returns, by position: their names prove nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

import modelexport
from modelexport.analysis import Severity
from modelexport.hierarchy import CheckOutcome
from modelexport.verification import validate_owners_by_value

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


class Gates(nn.Module):
    """Two results of one shape from modules, one that no module returns, the input, and a tensor a second time."""

    def __init__(self, form: Callable[..., Any]) -> None:
        super().__init__()
        self.form = form
        self.left = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        left, right = self.left(x), self.right(x)
        return self.form(x, left, right, left - right)


REPEATED = "dict with a repeated tensor"
FORMS: dict[str, Callable[..., Any]] = {
    "tuple": lambda x, a, b, c: (a, b, c),
    REPEATED: lambda x, a, b, c: {"b": b, "a": a, "same": b, "c": c, "x": x},
    "nested": lambda x, a, b, c: [a, {"z": b, "rest": (None, c, [x])}],
    "a size": lambda x, a, b, c: (a, b.shape[0], c, b),
}


def gates(form: str = "tuple") -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Gates(FORMS[form]).eval(), torch.randn(3, 4)


@pytest.mark.parametrize("strategy", ["fx", "htp"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_result_is_compared_completely(form: str, strategy: str, tmp_path: Path) -> None:
    model, x = gates(form)
    if (form, strategy) == ("a size", "htp"):
        pytest.skip("torch's tracer takes no number as a result")
    options: dict[str, Any] = {"dynamic": {"x": {0: "n"}}} if form == "a size" else {}
    result = modelexport.export_model(model, x, tmp_path / "m.onnx", strategy=strategy, check="run", **options)
    assert result.check.outcome is CheckOutcome.EQUAL
    found = modelexport.verify_modules(result.onnx_path, model, x)
    assert found.passed, str(found)
    count = len(onnx.load(result.onnx_path).graph.output)
    assert len(found[""].tensors) == count
    assert all(tensor.total is not None for tensor in found[""].tensors)


def test_fields_of_a_dataclass_are_compared_in_their_order(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Gates(lambda x, a, b, c: Pair(c, a)).eval(), torch.randn(3, 4)
    result = modelexport.export_model(model, x, tmp_path / "m.onnx", check="run")
    assert result.check.outcome is CheckOutcome.EQUAL
    assert [tensor.name for tensor in modelexport.verify_modules(result.onnx_path, model, x)[""].tensors] == [
        "left",
        "right",
    ]


def _swap(graph: onnx.GraphProto) -> None:
    outputs = list(graph.output)
    del graph.output[:]
    graph.output.extend([outputs[1], outputs[0], *outputs[2:]])


def _negate(graph: onnx.GraphProto) -> None:
    """The third output, which is a tensor that is returned twice."""
    name = graph.output[2].name
    for node in graph.node:
        node.output[:] = ["positive" if output == name else output for output in node.output]
    graph.node.append(onnx.helper.make_node("Neg", ["positive"], [name]))


def _remove(graph: onnx.GraphProto) -> None:
    del graph.output[-1]


def _repeat(graph: onnx.GraphProto) -> None:
    graph.node.append(onnx.helper.make_node("Identity", [graph.output[0].name], ["again"]))
    extra = graph.output.add()
    extra.CopyFrom(graph.output[0])
    extra.name = "again"


def _narrow(graph: onnx.GraphProto) -> None:
    """Another element type."""
    name = graph.output[0].name
    for node in graph.node:
        for values in (node.input, node.output):
            values[:] = ["single" if value == name else value for value in values]
    graph.node.append(onnx.helper.make_node("Cast", ["single"], [name], to=onnx.TensorProto.INT32))
    graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT32


MUTATIONS = [_swap, _negate, _remove, _repeat, _narrow]


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_verify_finds_outputs_in_the_wrong_place(mutate: Callable[[onnx.GraphProto], None], tmp_path: Path) -> None:
    model, x = gates(REPEATED)
    path = tmp_path / "m.onnx"
    modelexport.export_model(model, x, path)
    broken = onnx.load(path)
    mutate(broken.graph)
    onnx.save(broken, tmp_path / "broken.onnx")
    modelexport.retag(tmp_path / "broken.onnx", path, tmp_path / "retagged.onnx")
    found = modelexport.verify_modules(tmp_path / "retagged.onnx", model, x)
    assert not found.passed
    assert found[""].is_finding
    assert modelexport.verify_modules(path, model, x).passed


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_export_does_not_use_a_file_whose_outputs_are_in_the_wrong_place(
    mutate: Callable[[onnx.GraphProto], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    optimize = torch.onnx.ONNXProgram.optimize

    def broken(program: torch.onnx.ONNXProgram) -> None:
        optimize(program)
        proto = ir.to_proto(program.model)
        mutate(proto.graph)
        program.model = ir.from_proto(proto)

    monkeypatch.setattr(torch.onnx.ONNXProgram, "optimize", broken)
    model, x = gates(REPEATED)
    result = modelexport.export_model(model, x, tmp_path / "m.onnx", check="run")
    assert result.check.outcome is CheckOutcome.EQUAL
    assert any("the file of fx (dynamo) was not used" in note for note in result.notes)
    named = modelexport.export_model(model, x, tmp_path / "n.onnx", check="run", strategy="fx", optimize=True)
    assert named.check.outcome is CheckOutcome.EQUAL


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_validate_with_the_model_finds_outputs_in_the_wrong_place(
    mutate: Callable[[onnx.GraphProto], None], tmp_path: Path
) -> None:
    model, x = gates(REPEATED)
    path = tmp_path / "m.onnx"
    modelexport.export_model(model, x, path)
    broken = onnx.load(path)
    mutate(broken.graph)
    onnx.save(broken, tmp_path / "broken.onnx")
    modelexport.retag(tmp_path / "broken.onnx", path, tmp_path / "retagged.onnx")
    found = validate_owners_by_value(tmp_path / "retagged.onnx", model, x)
    assert [f.rule for f in found.findings if f.severity is Severity.ERROR][:1] == ["outputs"]
    assert not [f for f in validate_owners_by_value(path, model, x).findings if f.rule == "outputs"]
