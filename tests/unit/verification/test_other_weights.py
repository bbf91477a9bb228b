"""A model with other weights than the file is one error, and whatever a tool did to the weights is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

import modelexport
from modelexport import InputError, verify_modules
from modelexport.verification.other_weights import refuse_other_weights

X = torch.ones(2, 5, 6)
IMAGE = torch.ones(1, 3, 8, 8)
pytestmark = pytest.mark.sanity


def layers(seed: int) -> nn.Module:
    """Linear layers whose weights the exporter transposes, square ones too, and a norm with the same weights always."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 4), nn.PReLU()).eval()


def convolutions(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    model[1].running_var.uniform_(0.5, 2)
    return model


def exported(folder: Path, model: nn.Module, inputs: torch.Tensor) -> Path:
    modelexport.export_model(model, (inputs,), folder / "net.onnx")
    return folder / "net.onnx"


@pytest.mark.parametrize(("make", "inputs"), [(layers, X), (convolutions, IMAGE)])
def test_other_weights_are_one_error_that_says_so(
    make: Callable[[int], nn.Module], inputs: torch.Tensor, tmp_path: Path
) -> None:
    file = exported(tmp_path, make(0), inputs)
    assert verify_modules(file, make(0), (inputs,)).passed
    with pytest.raises(InputError, match=r"weights of the PyTorch model are not those of the file.*another "):
        verify_modules(file, make(1), (inputs,))


def test_one_other_weight_is_an_error_of_its_module(tmp_path: Path) -> None:
    file, changed = exported(tmp_path, layers(0), X), layers(0)
    changed.load_state_dict({**changed.state_dict(), "2.weight": torch.ones(4, 6)})
    report = verify_modules(file, changed, (X,))
    assert {call.call for call in report.findings if call.verdict == "introduced"} == {"2"}


def test_folded_weights_are_not_other_ones(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    model[1].running_var.uniform_(0.5, 2)
    assert not verify_modules(exported(tmp_path, model, IMAGE), model, (IMAGE,)).findings


def test_cast_weights_tell_nothing(tmp_path: Path) -> None:
    file = modelexport.load(exported(tmp_path, layers(0), X))
    assert file.document is not None
    with pytest.raises(InputError):
        refuse_other_weights(file.model.graph, file.document, layers(1))
    for value in file.model.graph.initializers.values():
        assert value.const_value is not None
        value.const_value = ir.tensor(value.const_value.numpy().astype(np.float16))
    refuse_other_weights(file.model.graph, file.document, layers(1))
