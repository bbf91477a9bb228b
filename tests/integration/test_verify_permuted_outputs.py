"""Permuted outputs are distinguished from errors by their effect on the callers."""

from __future__ import annotations

from pathlib import Path

import msgspec
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

import modelexport
from modelexport.analysis.verification_report import Verdict, VerificationReport
from modelexport.graph.digest import graph_hash

pytestmark = pytest.mark.integration


class Chooser(nn.Module):
    """Sorts all scores; returns them with their indices."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        best, places = self.scores(x).topk(6, dim=-1)
        return best.sigmoid(), places


class Worker(nn.Module):
    def forward(self, weights: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return weights[..., None] * rows.tanh()


class Mixer(nn.Module):
    """Sums the selected rows: the order has no effect, unless `by_place`."""

    def __init__(self, by_place: bool = False) -> None:
        super().__init__()
        self.chooser = Chooser()
        self.worker = Worker()
        self.table = nn.Parameter(torch.randn(6, 8))
        self.by_place = by_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, places = self.chooser(x)
        rows = self.worker(weights, self.table[places])
        if self.by_place:
            rows = rows * torch.arange(6.0)[:, None]
        return rows.sum(-2)


class Outer(nn.Module):
    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mixer(x) + 1


def verified(model: nn.Module, x: torch.Tensor, path: Path, *, turned: bool, **options: str) -> VerificationReport:
    """The report; `turned` reverses the order of the chooser in the file."""
    modelexport.export_model(model.eval(), (x,), path)
    if not turned:
        return modelexport.verify_modules(path, model, (x,), **options)
    changed = onnx.load(path)
    node = next(node for node in changed.graph.node if node.op_type == "TopK")
    kept = [attribute for attribute in node.attribute if attribute.name != "largest"]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute("largest", 0)])
    # As if the exporter had written it so.
    of_this_graph = graph_hash(ir.from_proto(changed))
    document = msgspec.structs.replace(modelexport.load(path).document, graph_hash=of_this_graph)
    return modelexport.verify_modules(changed, model, (x,), hierarchy=document, **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return tmp_path / "mixer.onnx"


def test_permuted_outputs_without_effect_on_the_caller_are_reordered(path: Path) -> None:
    report = verified(Outer(Mixer()), torch.randn(3, 4), path, turned=True)
    assert report.passed, str(report)
    chooser, worker = report["mixer.chooser"], report["mixer.worker"]
    assert chooser.verdict is worker.verdict is Verdict.REORDERED
    assert chooser.explanation == "permuted outputs: the same values in another order, without effect on 'mixer'"
    # Its inputs in the full run are permuted; alone it is right.
    assert worker.introduced is not None
    assert not worker.introduced.is_out
    assert worker.judged is worker.total
    assert report["mixer"].verdict is Verdict.WITHIN
    assert "2 with permuted outputs without effect" in report.summary()


def test_permuted_outputs_with_an_effect_are_introduced_by_their_call(path: Path) -> None:
    report = verified(Outer(Mixer(by_place=True)), torch.randn(3, 4), path, turned=True)
    assert report["mixer.chooser"].verdict is Verdict.INTRODUCED
    assert report["mixer"].source == "mixer.chooser"
    assert not report.passed


def test_permuted_outputs_of_the_model_are_an_error(path: Path) -> None:
    report = verified(Chooser(), torch.randn(3, 4), path, turned=True)
    assert report[""].verdict is Verdict.INTRODUCED
    assert not report.passed


def test_caller_is_compared_though_it_is_not_selected(path: Path) -> None:
    report = verified(Outer(Mixer()), torch.randn(3, 4), path, turned=True, select="call:mixer.chooser")
    assert [record.verdict for record in report.calls] == [Verdict.REORDERED]
    # To see the sizes, for the call itself, from another random state, and for the call around.
    assert report.forward_passes == 7


def test_equal_scores_may_be_selected_in_any_order(path: Path) -> None:
    model = Outer(Mixer())
    nn.init.zeros_(model.mixer.chooser.scores.weight)
    nn.init.zeros_(model.mixer.chooser.scores.bias)
    report = verified(model, torch.randn(3, 4), path, turned=False)
    assert report.passed, str(report)
