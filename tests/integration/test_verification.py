"""The check of owners by value finds wrong owners and reports no right ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import pytest
import torch
from tests.conftest import Exporter
from tests.support import zoo
from tests.support.breaking import (
    near_moves,
    random_moves,
    read_document,
    suspects_when_moved,
    with_owners,
    write_artifact,
)
from tests.support.command import Outcome
from tests.support.eager_calls import record_calls

import modelexport
from modelexport.analysis import Severity
from modelexport.analysis.validation.rule import ValidatedFile
from modelexport.errors import FileFormatError, InputError
from modelexport.limits import DEFAULT_RUN_LIMITS
from modelexport.ort import Runner, prepared
from modelexport.storage import build_ir
from modelexport.verification.contamination_by_value import check_owners_by_value, validate_owners_by_value
from modelexport.verification.forward_recording import record_forward
from modelexport.verification.order_statistics import OrderStatisticsIndex, order_statistics_of
from modelexport.verification.pytorch_run import array_of

pytestmark = pytest.mark.integration

_MOVES = 30
_ENOUGH = 0.9


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in zoo.names()])
@pytest.mark.parametrize("optimize", [True, False], ids=["optimized", "raw"])
def test_wrong_owners_are_found_and_right_ones_are_not_suspected(exported: Exporter, name: str, optimize: bool) -> None:
    ours = exported(name, optimize=optimize)
    check = check_owners_by_value(ValidatedFile(ours.path), ours.example.model, ours.example.inputs)
    assert check.suspects() == []
    for moves in (random_moves(check.document, _MOVES, seed=4), near_moves(check.document, _MOVES, seed=5)):
        found = [node for node, owner in moves if node in suspects_when_moved(check, node, owner)]
        assert len(found) / len(moves) >= _ENOUGH, f"{len(found)} of {len(moves)}"


@pytest.mark.xdist_group("nested_outputs")
def test_values_show_a_wrong_owner_that_the_file_alone_does_not(exported: Exporter, tmp_path: Path) -> None:
    ours = exported("nested_outputs")
    document = read_document(ours.path)
    # An output that the root computed, attributed to its child: the file alone does not contradict that.
    node = next(n.id for n in document.nodes if n.module == "" and _is_result(ours.path, n.id))
    path = write_artifact(tmp_path / "wrong.onnx", onnx.load(ours.path), with_owners(document, {node: "inner"}))
    assert ValidatedFile(path).owner_check.suspects() == []
    report = validate_owners_by_value(path, ours.example.model, ours.example.inputs)
    (case,) = report.cases
    assert (case.node, case.module, case.supported_modules) == (node, "inner", ("",))
    assert "were computed by (root)" in case.reason
    assert not report.is_valid


def _is_result(path: Path, tensor: str) -> bool:
    return tensor in {value.name for value in onnx.load(path, load_external_data=False).graph.output}


@pytest.mark.xdist_group("cnn")
def test_another_model_and_unfit_inputs_are_refused(exported: Exporter, tmp_path: Path) -> None:
    ours = exported("cnn")
    torch.manual_seed(99)
    other = type(ours.example.model)().eval()
    with pytest.raises(InputError, match="the weights of the PyTorch model are not those of the file"):
        validate_owners_by_value(ours.path, other, ours.example.inputs)
    with torch.no_grad():
        other.load_state_dict(ours.example.model.state_dict())
        next(other.parameters()).mul_(2)
    report = validate_owners_by_value(ours.path, other, ours.example.inputs)
    assert [(finding.rule, finding.severity) for finding in report.findings] == [("outputs", Severity.ERROR)]
    assert "values do not tell" in report.rules[-1].skipped
    with pytest.raises(InputError, match="Cnn does not run on these inputs"):
        validate_owners_by_value(ours.path, ours.example.model, torch.ones(1))
    bare = tmp_path / "bare.onnx"
    bare.write_bytes(ours.path.read_bytes())
    with pytest.raises(FileFormatError, match="there is no sidecar"):
        validate_owners_by_value(bare, ours.example.model, ours.example.inputs)


@pytest.mark.xdist_group("no_grad")
def test_command_checks_owners_by_value(
    exported: Exporter, command: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = exported("no_grad").path
    document = read_document(source)
    node = next(record.id for record in document.nodes if record.module == "trained.lin")
    path = write_artifact(tmp_path / "net.onnx", onnx.load(source), with_owners(document, {node: "frozen.norm"}))
    (tmp_path / "judged.py").write_text(
        "from tests.support import zoo\ndef make():\n    s = zoo.build('no_grad')\n    return s.model, (s.inputs,)\n"
    )
    for file, code in ((source, 0), (path, 1)):
        done = command("validate", file, "--check-contamination", "--model", "judged:make", "--format", "json")
        assert done.code == code, done.stderr
        report = json.loads(done.stdout)
        assert report["rules"][-1]["id"] == "contamination"
        assert [finding["node"] for finding in report["findings"]] == ([node] if code else [])
    for wrong in (("--model", "judged:make"), ("--check-contamination", "--input-shape", "x=1")):
        done = command("validate", path, *wrong)
        assert done.code == 2
        assert "error: --" in done.stderr


@pytest.mark.xdist_group("no_grad")
def test_report_is_kept_and_the_model_is_not_loaded_when_the_sidecar_is_missing(
    exported: Exporter, command: Callable[..., Outcome], tmp_path: Path
) -> None:
    bare = tmp_path / "bare.onnx"
    bare.write_bytes(exported("no_grad").path.read_bytes())
    done = command("validate", bare, "--check-contamination", "--model", "no_such_module:make", "--format", "json")
    assert done.code == 0, done.stderr
    report = json.loads(done.stdout)
    rules = {rule["id"]: rule for rule in report["rules"]}
    assert rules["contamination"]["skipped"] == "there is no sidecar to check"
    assert "skipped" not in rules["onnx-checker"]
    assert [finding["rule"] for finding in report["findings"]] == ["sidecar"]


def test_command_parses_the_file_once(
    command: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Sequential(torch.nn.Linear(600, 600), torch.nn.ReLU())
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    modelexport.export_model(model, torch.randn(2, 600), tmp_path / "net.onnx")
    assert (tmp_path / "net.onnx").stat().st_size > 2**20, "weights of this size are skipped where they are not needed"
    (tmp_path / "made.py").write_text(
        "import torch\ndef make():\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(600, 600), torch.nn.ReLU())\n"
        "    model.load_state_dict(torch.load('weights.pt'))\n"
        "    return model, (torch.ones(2, 600),)\n"
    )
    with (
        mock.patch.object(onnx, "load_model_from_string", wraps=onnx.load_model_from_string) as from_string,
        mock.patch.object(onnx, "load_model", wraps=onnx.load_model) as from_file,
    ):
        done = command("validate", "net.onnx", "--check-contamination", "--model", "made:make")
    assert done.code == 0, done.stderr
    assert from_string.call_count + from_file.call_count == 1


def test_half_precision_model_is_validated_and_verified_on_inputs_of_its_own_type(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8)).half()
    x = torch.randn(4, 8).half()
    modelexport.export_model(model, x, tmp_path / "net.onnx")
    assert array_of(x).dtype == np.float16
    assert validate_owners_by_value(tmp_path / "net.onnx", model, x).findings == ()
    assert modelexport.verify_modules(tmp_path / "net.onnx", model, x).passed


# --- the parts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["shared_block", "nested_outputs", "cond"])
def test_recorded_calls_have_their_inputs_and_outputs(name: str) -> None:
    example = zoo.build(name)
    inputs = example.inputs
    args, kwargs = (
        ((), inputs) if isinstance(inputs, dict) else (inputs if isinstance(inputs, tuple) else (inputs,), {})
    )
    run = record_forward(example.model, args, kwargs)
    expected = record_calls(example.model, args, kwargs)
    for call, seen in expected.items():
        assert run[call].outputs.keys() == seen.outputs.keys()
        for ours, theirs in ((run[call].inputs, seen.inputs), (run[call].outputs, seen.outputs)):
            for tensor, array in zip(ours.values(), theirs.values(), strict=True):
                np.testing.assert_allclose(array_of(tensor), array, rtol=1e-5, atol=1e-6)


def test_recording_restores_the_model() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = torch.nn.Dropout(0.5)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return self.drop(x) + torch.rand(()) + self.count

    model = Counting().train()
    state = torch.random.get_rng_state()
    record_forward(model, (torch.ones(3),), {})
    assert model.count == 0
    assert model.training
    assert model.drop.training
    assert torch.equal(state, torch.random.get_rng_state())
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert torch.is_grad_enabled()

    class Failing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no\nway")

    failing = Failing().train()
    with pytest.raises(InputError, match="Failing does not run on these inputs: RuntimeError: no way"):
        record_forward(failing, (torch.ones(1),), {})
    assert failing.training
    assert not failing._forward_hooks


def _fails(model: torch.nn.Module) -> None:
    raise RuntimeError("makes no sense here")


def _counts(model: torch.nn.Module) -> None:
    model.seen = 1


@pytest.mark.parametrize("besides", [None, _fails, _counts], ids=["computes", "fails", "changes"])
def test_dry_run_of_a_branch_that_is_not_taken_changes_nothing(besides: Callable[..., None] | None) -> None:
    class Choosing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.yes = torch.nn.Linear(3, 3)
            self.no = torch.nn.Linear(3, 3)
            self.seen = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def untaken(y: torch.Tensor) -> torch.Tensor:
                y = self.yes(y + torch.rand(3))
                if besides is not None:
                    besides(self)
                return y

            return torch.cond(x.sum() > 0, untaken, lambda y: self.no(y) * 2, (x,)) + torch.rand(3)

    model, x = Choosing(), -torch.ones(2, 3)
    made: list[tuple[str, np.ndarray]] = []
    torch.manual_seed(7)
    run = record_forward(
        model, (x,), {}, on_output=lambda tensor, call, read: made.append((call, array_of(tensor).copy()))
    )
    torch.manual_seed(7)
    np.testing.assert_allclose(
        array_of(run[""].outputs["output"]), array_of(model.no(x) * 2 + torch.rand(3)), rtol=1e-6
    )
    assert list(run) == (["", "yes", "no"] if besides is None else ["", "no"])
    assert [call.in_control_flow for call in run.values()] == (
        [False, True, True] if besides is None else [False, True]
    )
    assert model.seen == 0
    assert {"yes", "no", ""} == {call for call, _ in made}


def test_order_statistics_match_values_in_any_layout_and_distinguish_layouts() -> None:
    draw = np.random.default_rng(0)
    array = draw.normal(size=(4, 6)).astype(np.float32)
    taken = order_statistics_of(array)
    assert taken is not None
    assert taken.is_distinctive
    noisy = order_statistics_of(array * (1 + 1e-6))
    turned = order_statistics_of(array.T)
    other = order_statistics_of(draw.normal(size=(4, 6)).astype(np.float32))
    assert noisy is not None
    assert turned is not None
    assert other is not None
    assert taken.same_tensor(noisy)
    assert taken.same_values(turned)
    assert not taken.same_tensor(turned)
    assert not taken.same_values(other)
    assert taken.is_copy(turned)
    assert not taken.is_copy(noisy)
    assert [number for _, number in OrderStatisticsIndex([(noisy, 1), (other, 2), (turned, 3)]).find(taken)] == [1, 3]
    mask = order_statistics_of(np.where(array > 0, 0.0, np.finfo(np.float32).min))
    assert mask is not None
    assert not mask.is_distinctive
    assert order_statistics_of(np.zeros((0, 3))) is None


@pytest.mark.xdist_group("cnn")
def test_run_in_groups_returns_every_tensor_with_inline_and_external_weights(
    exported: Exporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = exported("cnn")
    beside = tmp_path / "beside.onnx"
    onnx.save(onnx.load(ours.path), beside, save_as_external_data=True, location="cnn.data", size_threshold=0)
    monkeypatch.setattr("modelexport.ort.prepared_model._GROUP_TENSORS", 3)
    found: list[dict[str, np.ndarray]] = []
    for path in (ours.path, beside):
        model = build_ir(path, onnx.load(path, load_external_data=False))
        with Runner(DEFAULT_RUN_LIMITS) as runner, prepared(model) as ready:
            found.append(dict(ready.tensors(runner, ours.feeds, ready.produced)))
    made = {name for node in onnx.load(ours.path).graph.node for name in node.output}
    assert found[0].keys() == found[1].keys() == made
    for name in made:
        np.testing.assert_array_equal(found[0][name], found[1][name])
