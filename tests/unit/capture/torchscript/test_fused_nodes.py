"""Owners of nodes that the TorchScript exporter fused or merged before its graph can be serialized."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import modelexport


class Computed(nn.Module):
    """A module that computes a function of its inputs and its module, if it has one."""

    def __init__(self, function: Callable[..., torch.Tensor], inner: nn.Module | None = None) -> None:
        super().__init__()
        self.function = function
        self.inner = inner

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs) if self.inner is None else self.function(self.inner, *inputs)


class Chain(nn.Module):
    """The second module computes from the result of the first, and from further inputs."""

    def __init__(self, a: nn.Module, b: nn.Module) -> None:
        super().__init__()
        self.a = a
        self.b = b

    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x.exp()), *rest).exp()


def between_transposes(inner: nn.Module) -> nn.Module:
    return Computed(lambda module, x: module(x.transpose(1, 2)).transpose(1, 2), inner)


def turned() -> nn.Module:
    return Computed(lambda x: x.transpose(1, 2))


def permuted() -> nn.Module:
    return Computed(lambda x: x.permute(1, 2, 0))


CUBE = (torch.ones(2, 6, 4),)
MATRIX = (torch.ones(4, 3),)
FUSED: dict[str, tuple[Callable[[], tuple[nn.Module, nn.Module]], tuple[torch.Tensor, ...], str]] = {
    "one of three transposes": (
        lambda: (between_transposes(nn.AvgPool1d(2)), between_transposes(nn.Dropout())),
        CUBE,
        "Transpose",
    ),
    "two transposes": (lambda: (turned(), permuted()), CUBE, "Transpose"),
    "transpose of an operand": (
        lambda: (
            Computed(torch.t),
            Computed(lambda layer, x: torch.addmm(layer.bias, x, layer.weight), nn.Linear(4, 4)),
        ),
        MATRIX,
        "Gemm",
    ),
    "new node": (
        lambda: (nn.LogSoftmax(1), nn.NLLLoss()),
        (torch.ones(3, 4), torch.tensor([0, 1, 2])),
        "SoftmaxCrossEntropyLoss",
    ),
}


def export(tmp_path: Path, modules: tuple[nn.Module, nn.Module], inputs: Any, **options: Any) -> Any:
    model = Chain(*modules).eval()
    return modelexport.export_model(model, inputs, tmp_path / "m.onnx", strategy="htp", **options)


@pytest.mark.parametrize("case", FUSED)
def test_node_that_replaces_nodes_of_two_calls_names_both(tmp_path: Path, case: str) -> None:
    modules, inputs, operator = FUSED[case]
    result = export(tmp_path, modules(), inputs)
    found = [node for node in result.document.nodes if node.op == operator][-1]
    assert (found.module, found.kind, found.contributors, found.confidence) == ("b", "fused", ("a",), 0.95)
    assert "replaces nodes of several calls" in found.reason
    report = modelexport.validate(tmp_path / "m.onnx", check_contamination=True)
    assert not report.findings


@pytest.mark.parametrize("dynamic", [{}, {"dynamic": {"x": {0: "n", 1: "m"}}}], ids=["fixed", "dynamic"])
def test_nodes_of_other_calls_that_cancel_out_are_not_contributors(tmp_path: Path, dynamic: dict[str, Any]) -> None:
    result = export(tmp_path, (turned(), turned()), CUBE, **dynamic)
    assert [(n.op, n.module, n.kind) for n in result.document.nodes] == [("Exp", "", "exact"), ("Exp", "", "exact")]


def test_nodes_of_one_call_that_were_fused_are_exact(tmp_path: Path) -> None:
    result = export(tmp_path, (Computed(lambda x: x.transpose(1, 2).permute(1, 2, 0)), nn.ReLU()), CUBE)
    assert {(n.module, n.kind) for n in result.document.nodes} == {("", "exact"), ("a", "exact"), ("b", "exact")}


class Picking(nn.Module):
    """Has the constant 1 in `forward` itself and in its module."""

    def __init__(self) -> None:
        super().__init__()
        self.pick = Computed(lambda x, at=1: x[:, at])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pick(x.transpose(1, 2).relu().transpose(1, 2))


class PassingOn(Picking):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pick(x, x.shape[0] - 1)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        pytest.param(Picking(), ("", "merged", ("pick",), 0.95), id="equal constants of both"),
        pytest.param(PassingOn(), ("", "exact", (), 1.0), id="number that the caller computed"),
    ],
)
def test_constant_of_a_caller_that_only_its_module_consumes(
    tmp_path: Path, model: nn.Module, expected: tuple[Any, ...]
) -> None:
    result = modelexport.export_model(model, CUBE, tmp_path / "m.onnx", strategy="htp")
    (found,) = (node for node in result.document.nodes if node.op == "Constant")
    assert (found.module, found.kind, found.contributors, found.confidence) == expected
