"""Every module of an exported file against PyTorch: right files pass, and a wrong one is told where it is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
import torch
from tests.conftest import Exported, Exporter
from tests.support import zoo
from tests.support.damage import change_attribute, change_weight
from tests.support.untouched import Snapshot, snapshot
from torch import nn

import modelexport
from modelexport.errors import InputError, SelectorError
from modelexport.graph.digest import graph_hash
from modelexport.hierarchy.document import HierarchyDocument
from modelexport.storage.transaction import sidecar_path
from modelexport.verification.boundary_recording import BoundaryRecorder, BoundaryRecording
from modelexport.verification.report import CallVerification, Verdict, VerificationReport

pytestmark = pytest.mark.integration

# Those that tell something new here; each is exported once for all tests of its worker.
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


def grouped(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.xdist_group(str(values[0])))


def verified(ours: Exported, path: Path | None = None, **options: object) -> VerificationReport:
    return modelexport.verify_modules(path or ours.path, ours.specimen.model, ours.specimen.inputs, **options)  # type: ignore[arg-type]


def around(document: HierarchyDocument, call: str) -> list[str]:
    """The calls that `call` ran inside of."""
    parents = {record.id: record.parent for record in document.calls}
    found = []
    while (parent := parents[call]) is not None:
        found.append(parent)
        call = parent
    return found


def of(report: VerificationReport, *verdicts: Verdict) -> set[str]:
    return {record.call for record in report.calls if record.verdict in verdicts}


# --- right files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("name", [grouped(name) for name in _MODELS])
def test_every_call_of_a_right_export_is_within_tolerance(exported: Exporter, name: str, optimize: bool) -> None:
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
            assert (record.inherited is None) == (record.call in bodies)


@pytest.mark.parametrize("name", [grouped(name) for name in ("bert", "shared_block")])
def test_other_sizes_than_those_exported_are_within_tolerance_when_axes_are_dynamic(
    exported: Exporter, name: str
) -> None:
    ours = exported(name, dynamic=True)
    longer: object = torch.randn(9, 8)
    if name == "bert":
        tokens = torch.randint(1, 99, (3, 11))
        longer = {"input_ids": tokens, "attention_mask": (tokens > 20).long()}
    report = modelexport.verify_modules(ours.path, ours.specimen.model, longer)
    assert report.passed, str(report)
    root = report[""].tensors[0].total
    assert root is not None
    assert root.elements == {"bert": 3 * 11 * 32, "shared_block": 18}[name]


@pytest.mark.xdist_group("cnn")
def test_fused_calls_are_not_comparable_and_say_with_what(exported: Exporter) -> None:
    report = verified(exported("cnn"))
    conv = report["features.0.conv"]
    assert (conv.verdict, conv.reason) == (Verdict.NOT_COMPARABLE, "fused")
    assert conv.fused_with == ("features.0.norm",)
    assert "fused with 'features.0.norm'" in conv.explanation
    assert report["features.0"].verdict is Verdict.WITHIN


@pytest.mark.xdist_group("cond")
def test_calls_in_a_branch_are_compared_when_it_is_taken(exported: Exporter) -> None:
    ours = exported("cond")
    taken, other = ("yes", "no") if ours.specimen.model.stem(ours.specimen.inputs).sum() > 0 else ("no", "yes")
    report = verified(ours)
    assert {"", "stem", taken, f"{taken}.lin"} == of(report, Verdict.WITHIN)
    for call in (other, f"{other}.lin"):
        assert (report[call].verdict, report[call].reason) == (Verdict.NOT_COMPARABLE, "not_run")


class Loop(nn.Module):
    """A body that runs several times, and the same module once more after it."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.block = nn.Linear(4, 4), zoo.Block(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def step(carry: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            following = torch.tanh(self.cell(carry + row))
            return following, self.block(following)

        last, rows = torch._higher_order_ops.scan(step, torch.zeros(4), x, dim=0)
        return self.block(rows) + last


def test_calls_in_a_loop_are_compared_in_its_first_round(tmp_path: Path) -> None:
    model, x = Loop().eval(), torch.randn(3, 4)
    path = tmp_path / "net.onnx"
    modelexport.export_model(model, x, path)
    report = modelexport.verify_modules(path, model, x)
    assert report.passed, str(report)
    assert of(report, Verdict.WITHIN) == {call.call for call in report.calls}


@pytest.mark.xdist_group("htp")
def test_files_of_the_torchscript_exporter_are_compared_too(tmp_path: Path) -> None:
    specimen = zoo.build("shared_block")
    path = tmp_path / "net.onnx"
    modelexport.export_model(specimen.model, specimen.inputs, path, strategy="htp")
    report = modelexport.verify_modules(path, specimen.model, specimen.inputs)
    assert report.passed, str(report)
    assert {"blk", "blk@1", "blk@2", "blk.lin@2", "out"} <= of(report, Verdict.WITHIN)


# --- one thing wrong -------------------------------------------------------------------------------------------


def check_single_culprit(report: VerificationReport, document: HierarchyDocument, culprit: str) -> None:
    """One call introduces the error; those around say so, those before it are right, those after it inherit."""
    assert not report.passed
    assert report.calls[0].call == culprit
    assert of(report, Verdict.INTRODUCED) == {culprit}
    assert of(report, Verdict.INSIDE) == set(around(document, culprit))
    assert {record.source for record in report.calls if record.verdict is Verdict.INSIDE} <= {culprit}
    order = [call.id for call in document.calls]
    inside = {call.id for call in document.calls if culprit in around(document, call.id)}
    place = order.index(culprit)
    before = set(order[:place]) - set(around(document, culprit))
    after = set(order[place + 1 :]) - inside
    assert of(report, Verdict.INHERITED, Verdict.UNDECIDED) - inside == after
    assert before <= of(report, Verdict.WITHIN, Verdict.NOT_COMPARABLE)
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
def test_changed_weight_is_introduced_by_its_module_and_inherited_after_it(
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
        # Key and value run after the query and do not read its result.
        assert {f"encoder.layer.0.attention.self.{other}" for other in ("key", "value")} <= of(report, Verdict.WITHIN)
        assert report.calls[0].call == culprit
        assert of(report, Verdict.INTRODUCED) == {culprit}
    elif name == "resnet":
        assert report.calls[0].call == culprit
        assert of(report, Verdict.INTRODUCED) == {culprit}
        assert of(report, Verdict.INSIDE) == set(around(ours.document, culprit))
    else:
        check_single_culprit(report, ours.document, culprit)


@pytest.mark.xdist_group("shared_block")
@pytest.mark.parametrize("optimize", [True, False])
def test_changed_weight_of_a_reused_module_is_introduced_by_each_of_its_calls(
    exported: Exporter, tmp_path: Path, optimize: bool
) -> None:
    ours = exported("shared_block", optimize=optimize)
    changed = tmp_path / "changed.onnx"
    change_weight(ours.path, changed, ours.document, "blk.lin@1")
    report = verified(ours, changed)
    assert {record.call for record in report.calls[:3]} == {"blk.lin", "blk.lin@1", "blk.lin@2"}
    assert of(report, Verdict.INTRODUCED) == {"blk.lin", "blk.lin@1", "blk.lin@2"}
    assert of(report, Verdict.INSIDE) == {"", "blk", "blk@1", "blk@2"}
    assert report["blk@1"].source == "blk.lin@1"
    assert of(report, Verdict.INHERITED) == {"blk.norm", "blk.norm@1", "blk.norm@2", "out"}
    # The first call inherits nothing; the second gets wrong inputs on top of its own error.
    first, second = report["blk.lin"].inherited, report["blk.lin@1"].inherited
    assert first is not None
    assert second is not None
    assert first.excess < 0.1
    assert second.excess > 1


@pytest.mark.parametrize(
    ("name", "call"), [grouped("bert", "encoder.layer.1.output.LayerNorm"), grouped("cnn", "features.0.norm")]
)
def test_wrong_attribute_is_introduced_by_the_module_that_has_it(
    exported: Exporter, tmp_path: Path, name: str, call: str
) -> None:
    ours = exported(name, optimize=False)
    changed = tmp_path / "changed.onnx"
    change_attribute(ours.path, changed, ours.document, call, "epsilon", 0.3)
    check_single_culprit(verified(ours, changed), ours.document, call)


@pytest.mark.xdist_group("cnn")
def test_error_of_fused_calls_that_cannot_be_run_alone_is_undecided(exported: Exporter, tmp_path: Path) -> None:
    ours = exported("cnn")
    changed = tmp_path / "changed.onnx"
    change_weight(ours.path, changed, ours.document, "features.2.conv")
    norm = verified(ours, changed)["features.2.norm"]
    assert norm.verdict is Verdict.UNDECIDED
    assert norm.introduced is None
    assert norm.total is not None
    assert "fused with" in norm.explanation


# --- selection, tolerance, groups ------------------------------------------------------------------------------


@pytest.mark.xdist_group("bert")
def test_only_selected_calls_are_compared(exported: Exporter) -> None:
    report = verified(exported("bert"), select="class:BertLayer")
    assert {record.call for record in report.calls} == {"encoder.layer.0", "encoder.layer.1"}
    assert report.passed
    with pytest.raises(SelectorError, match=r"did you mean 'BertLayer'"):
        verified(exported("bert"), select="class:BertLayre")


@pytest.mark.xdist_group("bert")
def test_tolerance_decides_what_is_out(exported: Exporter) -> None:
    strict = verified(exported("bert"), select="encoder.layer.0", rtol=0.0, atol=1e-12)
    assert not strict.passed
    assert strict.findings[0].call == "encoder.layer.0"
    assert verified(exported("bert"), select="encoder.layer.0", rtol=0.0, atol=1e-3).passed
    with pytest.raises(InputError, match=r"rtol is -1"):
        verified(exported("bert"), rtol=-1.0)


@pytest.mark.xdist_group("bert")
def test_groups_bound_the_tensors_held_and_change_no_number(
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


# --- the model, the inputs and the file as a caller may have them ----------------------------------------------


@pytest.mark.xdist_group("cnn")
def test_model_is_left_as_it_was_and_runs_in_evaluation_mode(exported: Exporter) -> None:
    ours = exported("cnn")
    model = ours.specimen.model
    model.train()
    model.features[0].norm.eval()
    handle = model.head.register_forward_hook(lambda *_: None)
    unfit = torch.randn(2, 4, 16, 16)
    before: Snapshot = snapshot(model)
    try:
        assert verified(ours).passed
        assert snapshot(model) == before
        with pytest.raises(InputError, match="cannot be run on these inputs"):
            modelexport.verify_modules(ours.path, model, unfit)
        assert snapshot(model) == before
    finally:
        handle.remove()
        model.eval()


class Scribbler(nn.Module):
    """Changes what it is given in place, and what it has given out before."""

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
def test_tensors_are_those_of_the_moment_they_were_given_and_returned(tmp_path: Path) -> None:
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
def test_half_precision_models_are_compared_at_their_precision(tmp_path: Path, dtype: torch.dtype) -> None:
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
        # onnxruntime has no kernels for it on a CPU: said of each module, and nothing ends.
        assert of(report, Verdict.FAILED) == {"", "first", "second"}
        assert all("NotImplemented" in record.explanation for record in report.calls)
        assert "NotImplemented" in report.whole_run_error
        assert not report.passed


@pytest.mark.xdist_group("shared_block")
def test_weights_in_another_file_are_found(tmp_path: Path) -> None:
    model, x = zoo.Block(64).eval(), torch.randn(2, 64)
    path = tmp_path / "net.onnx"
    modelexport.export_model(model, x, path, external_data=True)
    assert any(tensor.data_location for tensor in onnx.load(path, load_external_data=False).graph.initializer)
    report = modelexport.verify_modules(path, model, x)
    assert report.passed, str(report)
    assert report["lin"].verdict is Verdict.WITHIN


@pytest.mark.xdist_group("shared_block")
def test_other_weights_in_pytorch_are_a_finding_at_the_modules_that_have_them(exported: Exporter) -> None:
    ours = exported("shared_block")
    other = zoo.build("shared_block")
    with torch.no_grad():
        other.model.out.bias += 1
    report = modelexport.verify_modules(ours.path, other.model, other.inputs)
    assert of(report, Verdict.INTRODUCED) == {"out"}


@pytest.mark.xdist_group("shared_block")
def test_submodel_that_onnxruntime_refuses_is_a_record_and_the_rest_goes_on(exported: Exporter, tmp_path: Path) -> None:
    ours = exported("shared_block", optimize=False)
    model = onnx.load(ours.path)
    weight = next(w for w in model.graph.initializer if list(w.dims) == [2, 8])
    weight.CopyFrom(onnx.numpy_helper.from_array(np.ones((2, 7), np.float32), weight.name))
    model_path = tmp_path / "broken.onnx"
    onnx.save(model, model_path)
    changed = msgspec.structs.replace(ours.document, graph_hash=graph_hash(modelexport.load(model_path).model))
    report = modelexport.verify_modules(model_path, ours.specimen.model, ours.specimen.inputs, hierarchy=changed)
    assert report["out"].verdict is Verdict.FAILED
    assert "onnxruntime cannot run it alone" in report["out"].explanation
    assert {"blk", "blk@1", "blk@2"} <= of(report, Verdict.WITHIN)
    assert report.whole_run_error
    assert not report.passed


@pytest.mark.xdist_group("shared_block")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ours, tmp: modelexport.verify_modules(tmp / "none.onnx", ours.specimen.model, ()), "is not a file"),
        (lambda ours, tmp: verified(ours, _without_sidecar(ours, tmp)), "keep the sidecar"),
        (
            lambda ours, tmp: modelexport.verify_modules(ours.path, nn.Linear(8, 2), torch.randn(4, 8)),
            "not the exported model: it has no module 'blk'",
        ),
        (
            lambda ours, tmp: modelexport.verify_modules(ours.path, ours.specimen.model, torch.randn(5, 8)),
            "is 5x8, and the file requires 4x8",
        ),
        (lambda ours, tmp: modelexport.verify_modules(ours.path, "net", torch.randn(4, 8)), "not with a str"),
    ],
)
def test_bad_input_is_refused_with_what_is_wrong(
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
def test_report_is_ready_for_json_and_says_in_a_line_what_is_wrong(exported: Exporter, tmp_path: Path) -> None:
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
