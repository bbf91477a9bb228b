"""Files with one error: `verify` names the module that introduces it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
import torch
from tests.conftest import Exporter
from tests.support import zoo
from tests.support.damage import change_attribute, change_weight
from tests.support.verify_reports import callers_of, calls_with, grouped, verified

import modelexport
from modelexport.analysis.verification_report import Verdict, VerificationReport
from modelexport.graph.digest import graph_hash
from modelexport.hierarchy.document import HierarchyDocument

pytestmark = pytest.mark.integration


def check_single_culprit(report: VerificationReport, document: HierarchyDocument, culprit: str) -> None:
    """One call introduces the error; its callers name it, earlier calls are right, later calls inherit it."""
    assert not report.passed
    assert report.calls[0].call == culprit
    assert calls_with(report, Verdict.INTRODUCED) == {culprit}
    assert calls_with(report, Verdict.INSIDE) == set(callers_of(document, culprit))
    assert {record.source for record in report.calls if record.verdict is Verdict.INSIDE} <= {culprit}
    order = [call.id for call in document.calls]
    inside = {call.id for call in document.calls if culprit in callers_of(document, call.id)}
    place = order.index(culprit)
    before = set(order[:place]) - set(callers_of(document, culprit))
    after = set(order[place + 1 :]) - inside
    assert calls_with(report, Verdict.INHERITED, Verdict.UNDECIDED) - inside == after
    assert before <= calls_with(report, Verdict.WITHIN, Verdict.NOT_COMPARABLE)
    for call in after:
        record = report[call]
        assert record.total is not None
        assert record.total.is_out
        # Given the right inputs it is right: its error comes with them.
        if record.introduced is not None and record.inherited is not None:
            assert record.introduced.excess < 0.1
            assert record.inherited.excess > 1


@pytest.mark.parametrize(
    ("name", "optimize", "call", "culprit"),
    [
        grouped("bert", True, "encoder.layer.0.intermediate.dense", "encoder.layer.0.intermediate.dense"),
        grouped("bert", False, "encoder.layer.0.attention.self.query", "encoder.layer.0.attention.self.query"),
        grouped("cnn", False, "features.2.conv", "features.2.conv"),
        # Fused with its norm: the smallest call that can be run alone is the block around both.
        grouped("cnn", True, "features.2.conv", "features.2"),
        grouped("resnet", False, "embedder.embedder.convolution", "embedder.embedder.convolution"),
    ],
)
def test_error_of_a_changed_weight_is_introduced_by_its_module_and_inherited_by_later_ones(
    exported: Exporter, tmp_path: Path, name: str, optimize: bool, call: str, culprit: str
) -> None:
    ours = exported(name, optimize=optimize)
    changed = tmp_path / "changed.onnx"
    change_weight(ours.path, changed, ours.document, call)
    report = verified(ours, changed)
    worst = report.calls[0].introduced
    assert worst is not None
    assert worst.absolute > 0.01
    if name == "bert" and not optimize:
        # Key and value run after the query and do not consume its output.
        assert {f"encoder.layer.0.attention.self.{other}" for other in ("key", "value")} <= calls_with(
            report, Verdict.WITHIN
        )
        assert report.calls[0].call == culprit
        assert calls_with(report, Verdict.INTRODUCED) == {culprit}
    elif name == "resnet":
        assert report.calls[0].call == culprit
        assert calls_with(report, Verdict.INTRODUCED) == {culprit}
        assert calls_with(report, Verdict.INSIDE) == set(callers_of(ours.document, culprit))
    else:
        check_single_culprit(report, ours.document, culprit)


@pytest.mark.xdist_group("shared_block")
@pytest.mark.parametrize("optimize", [True, False])
def test_error_of_a_reused_module_is_introduced_by_each_of_its_calls(
    exported: Exporter, tmp_path: Path, optimize: bool
) -> None:
    ours = exported("shared_block", optimize=optimize)
    changed = tmp_path / "changed.onnx"
    change_weight(ours.path, changed, ours.document, "blk.lin@1")
    report = verified(ours, changed)
    assert {record.call for record in report.calls[:3]} == {"blk.lin", "blk.lin@1", "blk.lin@2"}
    assert calls_with(report, Verdict.INTRODUCED) == {"blk.lin", "blk.lin@1", "blk.lin@2"}
    assert calls_with(report, Verdict.INSIDE) == {"", "blk", "blk@1", "blk@2"}
    assert report["blk@1"].source == "blk.lin@1"
    assert calls_with(report, Verdict.INHERITED) == {"blk.norm", "blk.norm@1", "blk.norm@2", "out"}
    # The first call inherits nothing; the second gets wrong inputs on top of its own error.
    first, second = report["blk.lin"].inherited, report["blk.lin@1"].inherited
    assert first is not None
    assert second is not None
    assert first.excess < 0.1
    assert second.excess > 1


@pytest.mark.parametrize(
    ("name", "call"), [grouped("bert", "encoder.layer.1.output.LayerNorm"), grouped("cnn", "features.0.norm")]
)
def test_error_of_a_changed_attribute_is_introduced_by_its_module(
    exported: Exporter, tmp_path: Path, name: str, call: str
) -> None:
    ours = exported(name, optimize=False)
    changed = tmp_path / "changed.onnx"
    change_attribute(ours.path, changed, ours.document, call, "epsilon", 0.3)
    check_single_culprit(verified(ours, changed), ours.document, call)


@pytest.mark.xdist_group("cnn")
def test_error_of_a_fused_call_that_cannot_run_alone_is_undecided(exported: Exporter, tmp_path: Path) -> None:
    ours = exported("cnn")
    changed = tmp_path / "changed.onnx"
    change_weight(ours.path, changed, ours.document, "features.2.conv")
    norm = verified(ours, changed)["features.2.norm"]
    assert norm.verdict is Verdict.UNDECIDED
    assert norm.introduced is None
    assert norm.total is not None
    assert "fused with" in norm.explanation


@pytest.mark.xdist_group("shared_block")
def test_module_with_other_weights_in_pytorch_introduces_an_error(exported: Exporter) -> None:
    ours = exported("shared_block")
    other = zoo.build("shared_block")
    with torch.no_grad():
        other.model.out.bias += 1
    report = modelexport.verify_modules(ours.path, other.model, other.inputs)
    assert calls_with(report, Verdict.INTRODUCED) == {"out"}


@pytest.mark.xdist_group("shared_block")
def test_submodel_that_onnxruntime_rejects_is_a_failed_record_and_others_are_compared(
    exported: Exporter, tmp_path: Path
) -> None:
    ours = exported("shared_block", optimize=False)
    model = onnx.load(ours.path)
    weight = next(w for w in model.graph.initializer if list(w.dims) == [2, 8])
    weight.CopyFrom(onnx.numpy_helper.from_array(np.ones((2, 7), np.float32), weight.name))
    model_path = tmp_path / "broken.onnx"
    onnx.save(model, model_path)
    changed = msgspec.structs.replace(ours.document, graph_hash=graph_hash(modelexport.load(model_path).model))
    report = modelexport.verify_modules(model_path, ours.example.model, ours.example.inputs, hierarchy=changed)
    assert report["out"].verdict is Verdict.FAILED
    assert "onnxruntime cannot run it alone" in report["out"].explanation
    assert {"blk", "blk@1", "blk@2"} <= calls_with(report, Verdict.WITHIN)
    assert report.whole_run_error
    assert not report.passed
