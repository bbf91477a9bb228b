"""Correct files compared with PyTorch, module by module."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.conftest import Exporter
from tests.support import zoo
from tests.support.verify_reports import calls_with, grouped, verified
from torch import nn

import modelexport
from modelexport.analysis.verification_report import Verdict

pytestmark = pytest.mark.integration

# Each is exported once for all tests of its worker.
_MODELS = [
    "bert",
    "gpt2",
    "vit",
    "resnet",
    "whisper",
    "albert",
    "cnn",
    "lstm",
    "gru",
    "transformer_encoder",
    "shared_block",
    "aliased",
    "with_methods",
    "cond",
    "no_grad",
    "nested_outputs",
]


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("name", [grouped(name) for name in _MODELS])
def test_every_call_of_a_correct_export_is_within_tolerance(exported: Exporter, name: str, optimize: bool) -> None:
    ours = exported(name, optimize=optimize)
    report = verified(ours)
    assert report.passed, str(report)
    assert {record.call for record in report.calls} == {call.id for call in ours.document.calls}
    bodies = {call.id for call in ours.document.calls if not call.outputs}
    refused = [record for record in report.calls if record.verdict is Verdict.NOT_COMPARABLE]
    allowed = {"no_operation", "not_run"} | ({"fused"} if optimize else set())
    assert {record.reason for record in refused} <= allowed
    for record in refused:
        assert record.explanation
        assert bool(record.fused_with) == (record.reason == "fused")
    for record in report.calls:
        if record.verdict is Verdict.WITHIN:
            assert record.introduced is not None
            assert record.introduced.elements > 0
            # What is in the body of an If or a Loop cannot be looked at in the whole run.
            assert (record.total is None) == (record.call in bodies)
            # The whole model inherits nothing.
            assert (record.inherited is None) == (record.call in (*bodies, ""))


@pytest.mark.parametrize("name", [grouped(name) for name in ("bert", "shared_block")])
def test_other_sizes_are_within_tolerance_if_axes_are_dynamic(exported: Exporter, name: str) -> None:
    ours = exported(name, dynamic=True)
    longer: object = torch.randn(9, 8)
    if name == "bert":
        tokens = torch.randint(1, 99, (3, 11))
        longer = {"input_ids": tokens, "attention_mask": (tokens > 20).long()}
    report = modelexport.verify_modules(ours.path, ours.example.model, longer)
    assert report.passed, str(report)
    root = report[""].tensors[0].total
    assert root is not None
    assert root.elements == {"bert": 3 * 11 * 32, "shared_block": 18}[name]


@pytest.mark.xdist_group("cnn")
def test_fused_calls_are_not_comparable_and_name_the_calls_they_are_fused_with(exported: Exporter) -> None:
    report = verified(exported("cnn"))
    conv = report["features.0.conv"]
    assert (conv.verdict, conv.reason) == (Verdict.NOT_COMPARABLE, "fused")
    assert conv.fused_with == ("features.0.norm",)
    assert "fused with 'features.0.norm'" in conv.explanation
    assert report["features.0"].verdict is Verdict.WITHIN


@pytest.mark.xdist_group("cond")
def test_calls_in_a_branch_are_compared_if_it_is_taken(exported: Exporter) -> None:
    ours = exported("cond")
    taken, other = ("yes", "no") if ours.example.model.stem(ours.example.inputs).sum() > 0 else ("no", "yes")
    report = verified(ours)
    assert {"", "stem", taken, f"{taken}.lin"} == calls_with(report, Verdict.WITHIN)
    for call in (other, f"{other}.lin"):
        assert (report[call].verdict, report[call].reason) == (Verdict.NOT_COMPARABLE, "not_run")


class Loop(nn.Module):
    """A loop, and a call of the same module after it."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.block = nn.Linear(4, 4), zoo.Block(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def step(carry: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            following = torch.tanh(self.cell(carry + row))
            return following, self.block(following)

        last, rows = torch._higher_order_ops.scan(step, torch.zeros(4), x, dim=0)
        return self.block(rows) + last


def test_calls_in_a_loop_are_compared_in_the_first_iteration(tmp_path: Path) -> None:
    model, x = Loop().eval(), torch.randn(3, 4)
    path = tmp_path / "net.onnx"
    modelexport.export_model(model, x, path)
    report = modelexport.verify_modules(path, model, x)
    assert report.passed, str(report)
    assert calls_with(report, Verdict.WITHIN) == {call.call for call in report.calls}


@pytest.mark.xdist_group("htp")
def test_calls_of_a_torchscript_file_are_within_tolerance(tmp_path: Path) -> None:
    example = zoo.build("shared_block")
    path = tmp_path / "net.onnx"
    modelexport.export_model(example.model, example.inputs, path, strategy="htp")
    report = modelexport.verify_modules(path, example.model, example.inputs)
    assert report.passed, str(report)
    assert {"blk", "blk@1", "blk@2", "blk.lin@2", "out"} <= calls_with(report, Verdict.WITHIN)
