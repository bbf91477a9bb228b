"""The precision of float32 in the PyTorch run that a file is compared with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from modelexport.hierarchy import HierarchyDocument, ModuleRecord, Producer, TagView
from modelexport.verification.forward_recording import record_forward
from modelexport.verification.pytorch_run import BoundaryRecorder


class Flags(nn.Module):
    """Records the precision of products and convolutions during forward."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self._record = seen.extend

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._record(precisions())
        return x + 1


def precisions() -> tuple[str, str, str]:
    backends = torch.backends
    found = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    return tuple(operation.fp32_precision for operation in found)


@pytest.fixture(params=["default", "for all", "by operation"])
def setting(request: pytest.FixtureRequest) -> Iterator[tuple[str, str, str]]:
    """TF32 allowed in each of the ways that torch has."""
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = (matmul.fp32_precision, torch.get_float32_matmul_precision())
    if request.param == "for all":
        torch.set_float32_matmul_precision("high")
    elif request.param == "by operation":
        matmul.fp32_precision, conv.fp32_precision = "tf32", "ieee"
    yield precisions()
    conv.fp32_precision = "tf32"
    matmul.fp32_precision = before[0]
    torch.set_float32_matmul_precision(before[1])


@pytest.mark.parametrize("recording", ["boundaries", "operators"])
def test_tf32_is_off_in_the_reference_run_and_as_it_was_afterwards(
    setting: tuple[str, str, str], recording: str
) -> None:
    seen: list[str] = []
    model = Flags(seen)
    if recording == "operators":
        record_forward(model, (torch.ones(2),), {})
    else:
        module = ModuleRecord(path="", class_name="Flags", qualified_class="", tag="", visible=True)
        document = HierarchyDocument(1, Producer(), "", "", "", TagView(), (module,), (), (), ())
        BoundaryRecorder(model, document, (torch.ones(2),), {}).run()
    # An operation without a precision of its own has that of the GPU, which is ieee unless it is set.
    assert set(seen) <= {"ieee", "none"}
    assert seen
    assert "tf32" in setting
    assert [now == "tf32" for now in precisions()] == [before == "tf32" for before in setting]
