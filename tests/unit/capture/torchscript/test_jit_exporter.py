"""The TorchScript exporter: what its captures say where evidence is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import modelexport
from modelexport.capture.torchscript import capture_with_torchscript

pytestmark = pytest.mark.filterwarnings("ignore")


def block() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()


def test_no_owner_is_exact_where_the_original_graph_was_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    # As for a graph that torch cannot serialize before its passes.
    monkeypatch.setattr("modelexport.capture.torchscript.jit_graph.as_onnx", lambda graph, opset: None)
    capture = capture_with_torchscript(block(), (torch.ones(1, 3, 8, 8),), {}, {})
    assert [note for note in capture.notes if note.startswith("the graph before torch's passes was not seen")]
    assert {(found.kind, found.confidence) for found in capture.recorded.values()} == {("inferred", 0.7)}


@pytest.mark.parametrize("folding", [True, False])
def test_owners_are_exact_where_the_original_graph_was_seen_or_is_the_only_one(folding: bool) -> None:
    capture = capture_with_torchscript(block(), (torch.ones(1, 3, 8, 8),), {}, {"do_constant_folding": folding})
    assert capture.notes == ()
    assert {found.kind for found in capture.recorded.values()} == {"exact"}


class Sum(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.relu() + y


class PassesOwnTensor(nn.Module):
    """Passes a tensor that the tracer has not seen: looking it up would add a constant to the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = Sum()
        self.table = torch.ones(2, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.sum(x, self.table)
        return found / y


def test_tracer_that_cannot_be_asked_is_an_attempt_of_its_own_with_a_note(tmp_path: Path) -> None:
    inputs = (torch.ones(2, 4), 2 * torch.ones(2, 4))
    result = modelexport.export_model(PassesOwnTensor(), inputs, tmp_path / "m.onnx", strategy="htp", check="run")
    assert [attempt.variant for attempt in result.attempts] == ["", "unwatched"]
    assert "would change the graph" in str(result.attempts[0].error)
    assert [note for note in result.notes if note.startswith("inputs and outputs of module calls come from data flow")]
    # Shape and type do not distinguish the inputs, but their order does.
    (root,) = (call for call in result.document.calls if call.id == "")
    assert [tensor.tensor for tensor in root.inputs] == ["onnx::Relu_0", "onnx::Div_1"]
    assert result.check.outcome == "equal"


@torch.jit.script_if_tracing
def _scripted(x: torch.Tensor) -> torch.Tensor:
    y = x * 3
    if y.shape[0] > 1:
        y = y + 1
    return y


class Scripted(nn.Module):
    """Ends with a scripted function, whose nodes have no scope."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _scripted(self.lin(x))
        return found


def test_module_owns_the_work_of_a_scripted_function_that_it_returns(tmp_path: Path) -> None:
    model = nn.Sequential(Scripted(), nn.Linear(4, 4))
    result = modelexport.export_model(model, torch.ones(2, 4), tmp_path / "m.onnx", strategy="htp")
    owners = {(node.op, node.module) for node in result.document.nodes}
    assert owners == {("Gemm", "0.lin"), ("Constant", "0"), ("Mul", "0"), ("Add", "0"), ("Gemm", "1")}
