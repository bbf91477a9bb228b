"""Commands that run a file and its model synthesize the inputs that the file takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.support.command import Outcome
from torch import nn

import modelexport
from modelexport.storage import sidecar_path

pytestmark = pytest.mark.sanity

FACTORY = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.conv = nn.Embedding(9, 3), nn.Conv1d(3, 4, 3)

    def forward(self, ids, scale, mask=None):
        found = torch.relu(self.conv(self.tokens(ids).transpose(1, 2)))[:, :, 0] * scale
        return found if mask is None else found * mask.sum(1, keepdim=True)

def make():
    torch.manual_seed(0)
    return Net().eval()
"""


class Positional(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


def test_synthesized_inputs_have_the_sizes_and_types_of_the_file(
    tmp_path: Path, command: Callable[..., Outcome]
) -> None:
    (tmp_path / "nets.py").write_text(FACTORY, encoding="utf-8")
    reference, exported = f"{tmp_path}/nets.py:make", tmp_path / "net.onnx"
    model = modelexport.load_model(reference).model
    inputs = {
        "ids": torch.randint(0, 9, (3, 12), dtype=torch.int32),
        "scale": torch.rand(3, 4, dtype=torch.float64),
        "mask": torch.ones(3, 12, dtype=torch.float64),
    }
    axes = {"ids": {1: "length"}, "mask": {1: "length"}}
    modelexport.export_model(model, inputs, exported, dynamic=axes)
    found = modelexport.choose_inputs(model, onnx_file=exported).inputs
    length = found["ids"].shape[1]
    assert {name: (tuple(value.shape), value.dtype) for name, value in found.items()} == {
        "ids": ((3, length), torch.int32),
        "scale": ((3, 4), torch.float64),
        "mask": ((3, length), torch.float64),
    }
    for arguments in (("verify",), ("validate", "--check-contamination")):
        outcome = command(*arguments, exported, "--model", reference)
        assert outcome.code == 0, outcome.stderr
    # As another exporter leaves it.
    sidecar_path(exported).unlink()
    outcome = command("tag", exported, "--model", reference, "--force")
    assert outcome.code == 0, outcome.stderr


def test_inputs_that_another_exporter_named_are_taken_in_their_order(tmp_path: Path) -> None:
    torch.onnx.export(Positional().eval(), (torch.ones(5, 2),), tmp_path / "net.onnx", input_names=["in.put"])
    found = modelexport.choose_inputs(Positional(), onnx_file=tmp_path / "net.onnx").inputs
    assert {name: tuple(value.shape) for name, value in found.items()} == {"x": (5, 2)}
