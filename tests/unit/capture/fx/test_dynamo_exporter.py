"""Captures with the dynamo exporter where module calls or the original graph cannot be watched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnxscript import optimizer
from tests.support.plain import export_plainly
from torch import nn
from torch.onnx._internal.exporter import _ir_passes

import modelexport
from modelexport.capture.capture import DYNAMO
from modelexport.capture.diagnosis import failures_explained
from modelexport.capture.fx.dynamo_exporter import capture_export, capture_with_dynamo
from modelexport.capture.fx.node_owners import find_calls
from modelexport.capture.fx.trace_recorder import TraceRecorder
from modelexport.capture.module_tree import read_module_tree
from modelexport.errors import ContractError, UnsupportedLibraryError
from modelexport.hierarchy import CallId, CheckOutcome

pytestmark = pytest.mark.filterwarnings("ignore")


class WithoutHooks(nn.Module):
    """Fails where a submodule has forward hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.lin._forward_hooks:
            raise RuntimeError("this model runs without hooks")
        return self.lin(x).relu()


def block() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()


def test_capture_without_hooks_is_an_attempt_of_its_own_with_a_note(tmp_path: Path) -> None:
    result = modelexport.export_model(WithoutHooks(), torch.ones(2, 4), tmp_path / "m.onnx", strategy="fx")
    assert [(attempt.exporter, attempt.variant) for attempt in result.attempts] == [
        ("dynamo", ""),
        ("dynamo", "unwatched"),
    ]
    assert "RuntimeError: this model runs without hooks" in str(result.attempts[0].error)
    (note,) = result.notes
    assert note.startswith("module calls were not watched, because the exporter failed while hooks watched them")
    assert {node.op: (node.module, node.kind) for node in result.document.nodes} == {
        "Gemm": ("lin", "inferred"),
        "Relu": ("", "inferred"),
    }
    (lin,) = (call for call in result.document.calls if call.id == "lin")
    assert [tensor.tensor for tensor in (*lin.inputs, *lin.outputs)] == ["x", "linear"]


class SizeByValue(nn.Module):
    """The size of its result is a value of its input, which torch captures in strict mode only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return torch.zeros(int(rows.max()) + 1, 4).index_add(0, rows, self.second(self.first(x).relu()))


def test_model_that_only_strict_capture_takes_has_boundaries_and_a_note(tmp_path: Path) -> None:
    inputs = (torch.ones(3, 4), torch.tensor([0, 1, 1]))
    result = modelexport.export_model(SizeByValue(), inputs, tmp_path / "m.onnx", strategy="fx")
    assert [(attempt.exporter, attempt.variant) for attempt in result.attempts] == [("dynamo", "strict")]
    assert [note for note in result.notes if "only in its strict mode" in note]
    boundaries = {
        call.id: ([tensor.tensor for tensor in call.inputs], [tensor.tensor for tensor in call.outputs])
        for call in result.document.calls
    }
    assert boundaries["first"] == (["x"], ["linear"])
    assert boundaries["second"] == (["relu"], ["linear_1"])
    assert boundaries[""][0] == ["x", "rows"]


def test_model_whose_forward_torch_could_trace_is_not_exported_a_second_time(tmp_path: Path) -> None:
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cdist(x, x)

    with pytest.raises(modelexport.StrategyIncompatibleError) as caught:
        modelexport.export_model(Failing(), torch.ones(2, 4), tmp_path / "m.onnx", strategy="fx")
    first, last = caught.value.attempts
    assert (first.exporter, first.variant) == ("dynamo", "")
    # It ends after the trace: the graph would be the same.
    assert last.variant == "with constants computed"
    assert "cannot export this model: every value that the model computes depends on an input" in str(last.error)


class Relative(nn.Module):
    """Attention with scores of positions that weights compute: with gradients, torch traces another kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)
        self.mix = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        found = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=q @ k.transpose(-1, -2))
        return self.mix(found.transpose(1, 2).flatten(2))


def test_attention_that_torch_decomposes_to_other_strides_is_traced_without_gradients(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x, path = nn.Sequential(Relative(), nn.ReLU()).eval(), torch.randn(2, 5, 8), tmp_path / "m.onnx"
    result = modelexport.export_model(model, x, path, strategy="fx", check="run")
    assert [attempt.variant for attempt in result.attempts] == ["", "without gradients"]
    assert "Cannot view a tensor" in str(result.attempts[0].error)
    assert result.check.outcome is CheckOutcome.EQUAL
    assert {node.module for node in result.document.nodes} == {"0", "0.project", "0.mix", "1"}
    with torch.no_grad():
        plain = export_plainly(model, (x,), {}, tmp_path / "plain.onnx")
    assert modelexport.strip_hierarchy(onnx.load(path)) == plain


def test_capture_with_hooks_has_no_note(tmp_path: Path) -> None:
    result = modelexport.export_model(nn.Linear(4, 4), torch.ones(2, 4), tmp_path / "m.onnx", strategy="fx")
    assert result.notes == ()


@pytest.mark.parametrize("wrapped", [False, True])
def test_error_of_this_package_is_never_the_exporters(wrapped: bool) -> None:
    error = ContractError("a bug")
    found: Exception = error
    if wrapped:
        # As torch does with what is raised while it traces.
        found = RuntimeError("could not trace")
        found.__cause__ = error
    with pytest.raises(ContractError) as caught, failures_explained("fx", DYNAMO, nn.Linear(1, 1)):
        raise found
    assert caught.value is error


@pytest.mark.parametrize("strategy", ["fx", "htp"])
def test_error_of_this_package_in_a_hook_during_the_export_is_raised_as_it_is(strategy: str, tmp_path: Path) -> None:
    model, error = nn.Sequential(nn.Linear(4, 4)), ContractError("a bug")

    def hook(*_: Any) -> None:
        # Not in the run before the export.
        if torch.compiler.is_exporting() or torch.jit.is_tracing():
            raise error

    model[0].register_forward_hook(hook)
    with pytest.raises(ContractError) as caught:
        modelexport.export_model(model, torch.ones(2, 4), tmp_path / "m.onnx", strategy=strategy)
    assert caught.value is error


def test_missing_part_of_torch_is_not_the_exporters_failure() -> None:
    error = UnsupportedLibraryError("torch._x", "1", ())
    with (
        pytest.raises(modelexport.StrategyIncompatibleError, match=r"has no torch\._x") as caught,
        failures_explained("fx", DYNAMO, nn.Linear(1, 1)),
    ):
        raise error
    assert "exporter failed" not in str(caught.value)


@pytest.mark.parametrize("optimize", [True, False])
def test_owners_are_exact_where_the_original_graph_was_seen_or_is_the_only_one(optimize: bool) -> None:
    capture = capture_with_dynamo(block(), (torch.ones(1, 3, 8, 8),), {}, {"optimize": optimize})
    assert capture.notes == ()
    assert (capture.original_graph is capture.model) == (not optimize)
    assert {found.kind for found in capture.recorded.values()} == {"exact"}


def test_owners_are_not_exact_where_the_graph_before_optimization_was_not_seen() -> None:
    model = block()
    program = torch.onnx.export(model, (torch.ones(1, 3, 8, 8),), None, dynamo=True, verbose=False)
    capture = capture_export(model, lambda: program, DYNAMO, optimize=True)
    assert [note for note in capture.notes if note.startswith("the graph before torch's optimizer was not seen")]
    assert {(found.kind, found.confidence) for found in capture.recorded.values()} == {("inferred", 0.7)}


def test_graph_that_torch_optimized_before_it_was_seen_is_not_taken_for_the_original(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As a release of torch would do that optimizes as soon as it has translated the graph.
    add_opset_imports = _ir_passes.add_opset_imports
    monkeypatch.setattr(
        _ir_passes, "add_opset_imports", lambda model: (optimizer.optimize(model), add_opset_imports(model))
    )
    capture = capture_with_dynamo(block(), (torch.ones(1, 3, 8, 8),), {}, {})
    assert [note for note in capture.notes if "torch rewrote it before it was seen" in note]
    assert {found.kind for found in capture.recorded.values()} == {"inferred"}


@pytest.mark.parametrize("steps", ["before", "after"])
def test_first_graph_is_the_original_where_torch_optimizes_in_two_steps(steps: str) -> None:
    model = block()

    def export() -> Any:
        optimize = steps == "after"
        x = (torch.ones(1, 3, 8, 8),)
        program = torch.onnx.export(model, x, None, dynamo=True, verbose=False, optimize=optimize)
        assert program is not None
        if not optimize:
            # As a release of torch would do that also optimizes elsewhere than in `ONNXProgram.optimize`.
            program.model = optimizer.optimize(program.model)
        program.optimize()
        return program

    capture = capture_export(model, export, DYNAMO, optimize=True)
    assert capture.notes == ()
    assert {node.op_type for node in capture.original_graph.graph} == {"Conv", "BatchNormalization", "Relu"}


def test_owners_are_exact_where_torch_converts_the_graph_to_another_opset_version() -> None:
    # onnx's converter gives no node the metadata that it had.
    capture = capture_with_dynamo(block(), (torch.ones(1, 3, 8, 8),), {}, {"opset_version": 17})
    assert capture.notes == ()
    assert capture.model.opset_imports[""] == 17
    assert {found.kind for found in capture.recorded.values()} == {"exact"}


class Branches(nn.Module):
    """Runs modules in the branches of `torch.cond`."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda v: self.left(v).relu(), lambda v: self.right(self.left(v)), (x,))


def test_calls_are_complete_before_any_owner_is_asked_for() -> None:
    model, x = Branches(), (torch.ones(2, 4),)
    tree = read_module_tree(model)
    recorder = TraceRecorder(model, tree)
    with recorder.watching():
        program = torch.export.export(model, x, strict=False).run_decompositions({})
    found = find_calls(program, recorder, tree)
    assert {CallId(""), CallId("left"), CallId("left", 1), CallId("right")} == {call.id for call in found.calls}
    assert set(found.owners.values()) <= {call.id for call in found.calls}
    assert list(find_calls(program, recorder, tree).calls) == list(found.calls)
