"""With `verbose` the TorchScript exporter writes stack traces into the file: they are those of plain torch too."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import modelexport

pytestmark = pytest.mark.integration


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.lin(x)) if x.sum() > 0 else self.lin(x)


def double(_: nn.Module, __: Any, result: torch.Tensor) -> torch.Tensor:
    return result * 2


def shift(_: nn.Module, args: tuple[torch.Tensor, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return (args[0] + 1,), kwargs


def hooked() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    model.register_forward_hook(double)
    model[0].register_forward_hook(double)
    model[1].lin.register_forward_pre_hook(shift, with_kwargs=True)
    return model.eval()


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block()).eval()


def traces(model: onnx.ModelProto) -> list[str]:
    return [node.doc_string for node in model.graph.node]


@pytest.mark.parametrize("make", [plain, hooked])
@pytest.mark.parametrize("strategy", ["htp", "usage_based"])
def test_file_equals_plain_verbose_export_when_stripped(make: Any, strategy: str, tmp_path: Path) -> None:
    x = torch.ones(2, 4)
    paths = {"plain": tmp_path / "plain.onnx", "ours": tmp_path / "ours.onnx"}

    def export(side: str) -> None:
        # Both from this one place, whose line is in the traces.
        given: dict[str, Any] = {"plain": {"dynamo": False}, "ours": {"strategy": strategy, "exporter": "torchscript"}}
        how: Any = {"plain": torch.onnx.export, "ours": modelexport.export_model}[side]
        how(make(), (x,), str(paths[side]), verbose=True, **given[side])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for side in paths:
            export(side)
    theirs = onnx.load(paths["plain"])
    stripped = modelexport.strip_hierarchy(onnx.load(paths["ours"]))
    assert traces(stripped) == traces(theirs)
    assert stripped.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)
    assert all(f"{Path(__file__).name}(" in trace for trace in traces(theirs)), "there is something to compare"


def test_private_leaves_the_traces_out(tmp_path: Path) -> None:
    modelexport.export_model(plain(), torch.ones(2, 4), tmp_path / "m.onnx", strategy="htp", verbose=True, private=True)
    assert set(traces(modelexport.strip_hierarchy(onnx.load(tmp_path / "m.onnx")))) == {""}
