"""Options of `verify`, and models, inputs and files as a caller may have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
import torch
from onnxruntime.quantization import quantize_dynamic
from tests.conftest import Exported, Exporter
from tests.support import zoo
from tests.support.damage import change_weight
from tests.support.untouched import Snapshot, snapshot
from tests.support.verify_reports import calls_with, verified
from torch import nn

import modelexport
from modelexport.analysis.verification_report import CallVerification, Verdict
from modelexport.errors import InputError, SelectorError
from modelexport.storage.transaction import sidecar_path
from modelexport.verification.pytorch_run import BoundaryRecorder, BoundaryRecording

pytestmark = pytest.mark.integration


@pytest.mark.xdist_group("bert")
def test_only_selected_calls_are_compared(exported: Exporter) -> None:
    report = verified(exported("bert"), select="class:BertLayer")
    assert {record.call for record in report.calls} == {"encoder.layer.0", "encoder.layer.1"}
    assert report.passed
    with pytest.raises(SelectorError, match=r"did you mean 'BertLayer'"):
        verified(exported("bert"), select="class:BertLayre")


@pytest.mark.xdist_group("bert")
def test_given_tolerance_replaces_the_default(exported: Exporter) -> None:
    strict = verified(exported("bert"), select="encoder.layer.0", rtol=0.0, atol=1e-12)
    assert not strict.passed
    assert strict.findings[0].call == "encoder.layer.0"
    assert verified(exported("bert"), select="encoder.layer.0", rtol=0.0, atol=1e-3).passed
    with pytest.raises(InputError, match=r"rtol is -1"):
        verified(exported("bert"), rtol=-1.0)


@pytest.mark.xdist_group("bert")
def test_memory_limit_groups_calls_without_changing_the_report(
    exported: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    run = BoundaryRecorder.run

    def measured(self: BoundaryRecorder, keep: object = ()) -> BoundaryRecording:
        found = run(self, keep)  # type: ignore[arg-type]
        held.append(sum({id(array): array.nbytes for array in found.values.values()}.values()))
        return found

    monkeypatch.setattr(BoundaryRecorder, "run", measured)
    ours = exported("bert")
    at_once = verified(ours)
    assert at_once.forward_passes == len(held) == 2
    everything = max(held)
    held.clear()
    # One call's own tensors may need more than that: the intermediate layer of 37 has the widest.
    budget = 24_000
    in_groups = verified(ours, memory_bytes=budget)
    assert in_groups.forward_passes == len(held) > 5
    assert max(held) <= budget < everything
    assert in_groups.calls == at_once.calls


@pytest.mark.xdist_group("cnn")
def test_model_runs_in_evaluation_mode_and_is_restored(exported: Exporter) -> None:
    ours = exported("cnn")
    model = ours.example.model
    model.train()
    model.features[0].norm.eval()
    handle = model.head.register_forward_hook(lambda *_: None)
    unfit = torch.randn(2, 4, 16, 16)
    before: Snapshot = snapshot(model)
    try:
        assert verified(ours).passed
        assert snapshot(model) == before
        with pytest.raises(InputError, match="does not run on these inputs"):
            modelexport.verify_modules(ours.path, model, unfit)
        assert snapshot(model) == before
    finally:
        handle.remove()
        model.eval()


class Scribbler(nn.Module):
    """Changes its input in place, and the output of its submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x += 1
        y = self.lin(x)
        y.mul_(2)
        return y


@pytest.mark.xdist_group("scribbler")
def test_in_place_changes_do_not_affect_recorded_inputs_and_outputs(tmp_path: Path) -> None:
    model, x = Scribbler().eval(), torch.randn(3, 4)
    path = tmp_path / "net.onnx"
    modelexport.export_model(model, x.clone(), path)
    kept = x.clone()
    report = modelexport.verify_modules(path, model, x)
    assert report.passed, str(report)
    assert report["lin"].verdict is Verdict.WITHIN
    assert torch.equal(x, kept)
    assert model.calls == 0


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.second(torch.relu(self.first(x)))
        return {"scores": scores, "best": scores.argmax(-1), "is_sure": scores.amax(-1) > 0.5, "top": scores.max()}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_models_are_compared_with_the_tolerance_of_their_type(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    model, x = Half().to(dtype).eval(), torch.randn(5, 16, dtype=dtype)
    path = tmp_path / "net.onnx"
    modelexport.export_model(model, x, path)
    report = modelexport.verify_modules(path, model, x)
    if dtype is torch.float16:
        assert report.passed, str(report)
        assert {t.name: t.dtype for t in report[""].tensors} == {
            "scores": "float16",
            "best": "int64",
            "is_sure": "bool",
            "top": "float16",
        }
    else:
        # onnxruntime has no CPU kernels for it: each module has a record, and the run continues.
        assert calls_with(report, Verdict.FAILED) == {"", "first", "second"}
        assert all("NotImplemented" in record.explanation for record in report.calls)
        assert "NotImplemented" in report.whole_run_error
        assert not report.passed


@pytest.mark.xdist_group("shared_block")
def test_modules_with_external_weights_are_compared(tmp_path: Path) -> None:
    model, x = zoo.Block(64).eval(), torch.randn(2, 64)
    path = tmp_path / "net.onnx"
    modelexport.export_model(model, x, path, external_data=True)
    assert any(tensor.data_location for tensor in onnx.load(path, load_external_data=False).graph.initializer)
    report = modelexport.verify_modules(path, model, x)
    assert report.passed, str(report)
    assert report["lin"].verdict is Verdict.WITHIN


@pytest.mark.xdist_group("shared_block")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ours, tmp: modelexport.verify_modules(tmp / "none.onnx", ours.example.model, ()), "is not a file"),
        (lambda ours, tmp: verified(ours, _without_sidecar(ours, tmp)), "keep the sidecar"),
        (
            lambda ours, tmp: modelexport.verify_modules(ours.path, nn.Linear(8, 2), torch.randn(4, 8)),
            "not the exported model: it has no module 'blk'",
        ),
        (
            lambda ours, tmp: modelexport.verify_modules(ours.path, ours.example.model, torch.randn(5, 8)),
            "is 5x8, and the file requires 4x8",
        ),
        (lambda ours, tmp: modelexport.verify_modules(ours.path, "net", torch.randn(4, 8)), "not with a str"),
    ],
)
def test_invalid_input_is_refused_with_the_problem(
    exported: Exporter, tmp_path: Path, call: Callable[[Exported, Path], object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        call(exported("shared_block"), tmp_path)


def _without_sidecar(ours: Exported, folder: Path) -> Path:
    path = folder / "alone.onnx"
    path.write_bytes(ours.path.read_bytes())
    assert not sidecar_path(path).exists()
    return path


@pytest.mark.xdist_group("shared_block")
def test_report_is_valid_json_and_a_summary_in_words(exported: Exporter, tmp_path: Path) -> None:
    ours = exported("shared_block")
    changed = tmp_path / "changed.onnx"
    name = change_weight(ours.path, changed, ours.document, "out")
    model = onnx.load(changed)
    weight = next(w for w in model.graph.initializer if w.name == name)
    array = onnx.numpy_helper.to_array(weight).copy()
    array.flat[0] = np.nan
    weight.CopyFrom(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, changed)
    report = verified(ours, changed)
    record: CallVerification = report["out"]
    assert record.introduced is not None
    assert record.introduced.nonfinite == 4
    content = report.as_dict()
    assert content["calls"][0]["call"] == "out"
    assert content["calls"][0]["introduced"]["absolute"] is None
    assert content["passed"] is False
    assert "introduced: out (Linear), largest error inf" in str(report)
    msgspec.json.encode(content)


@pytest.mark.filterwarnings("ignore")
def test_quantized_file_is_compared_with_the_tolerance_of_its_own_types(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval(), torch.randn(2, 4, 64)
    modelexport.export_model(model, x, tmp_path / "net.onnx")
    quantize_dynamic(str(tmp_path / "net.onnx"), str(tmp_path / "quantized.onnx"))
    tagged = modelexport.retag(tmp_path / "quantized.onnx", tmp_path / "net.onnx", tmp_path / "tagged.onnx").files[0]
    report = modelexport.verify_modules(tagged, model, x)
    assert report.passed, str(report)
    assert report.precisions == ("8-bit integers", "float32")
    assert 25 < report.as_dict()["calls"][0]["introduced"]["sqnr"] < 60
    assert not modelexport.verify_modules(tagged, model, x, rtol=1e-3, atol=1e-5).passed
