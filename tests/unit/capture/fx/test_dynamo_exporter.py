"""Captures with the dynamo exporter where module calls or the original graph cannot be watched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import modelexport
from modelexport.capture.diagnosis import explain_failure
from modelexport.capture.exporter_names import DYNAMO
from modelexport.capture.fx.dynamo_exporter import capture_export, capture_with_dynamo
from modelexport.capture.fx.node_owners import find_calls
from modelexport.capture.fx.trace_recorder import TraceRecorder
from modelexport.capture.module_tree import read_module_tree
from modelexport.errors import ContractError
from modelexport.hierarchy import CallId

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


def test_capture_without_hooks_has_a_note_and_owners_from_torchs_own_record(tmp_path: Path) -> None:
    result = modelexport.export_model(WithoutHooks(), torch.ones(2, 4), tmp_path / "m.onnx", strategy="fx")
    assert (
        "module calls could not be watched: RuntimeError: this model runs without hooks; owners come from torch's own "
        "record"
    ) in result.notes
    assert {node.op: (node.module, node.kind) for node in result.document.nodes} == {
        "Gemm": ("lin", "inferred"),
        "Relu": ("", "inferred"),
    }


def test_capture_with_hooks_has_no_note(tmp_path: Path) -> None:
    result = modelexport.export_model(nn.Linear(4, 4), torch.ones(2, 4), tmp_path / "m.onnx", strategy="fx")
    assert result.notes == ()


def test_error_of_this_package_in_a_hook_is_raised_although_torch_wraps_it() -> None:
    error = ContractError("a bug")
    model = nn.Sequential(nn.Linear(4, 4))
    exports = []

    def hook(*_: Any) -> None:
        raise error

    def export() -> Any:
        exports.append(1)
        # Only the first export fails: a second one would succeed, and hide the error.
        handle = model[0].register_forward_hook(hook) if len(exports) == 1 else None
        try:
            return torch.onnx.export(model, (torch.ones(2, 4),), None, dynamo=True, verbose=False)
        finally:
            if handle is not None:
                handle.remove()

    with pytest.raises(ContractError) as caught:
        capture_export(model, export, DYNAMO, optimize=True)
    assert caught.value is error
    assert exports == [1]


def test_broken_contract_is_not_reported_as_a_failure_of_the_exporter() -> None:
    error = ContractError("a bug")
    with pytest.raises(ContractError) as caught:
        explain_failure("fx", DYNAMO, nn.Linear(1, 1), error)
    assert caught.value is error


@pytest.mark.parametrize("optimize", [True, False])
def test_owners_are_exact_where_the_original_graph_was_seen_or_is_the_only_one(optimize: bool) -> None:
    capture = capture_with_dynamo(block(), (torch.ones(1, 3, 8, 8),), {}, {"optimize": optimize})
    assert capture.notes == ()
    assert (capture.original_graph is capture.model) == (not optimize)
    assert {found.kind for found in capture.recorded.values()} == {"exact"}


def test_owners_are_not_exact_where_the_graph_before_optimization_was_not_seen() -> None:
    from onnxscript import optimizer

    model = block()

    def export() -> Any:
        program = torch.onnx.export(model, (torch.ones(1, 3, 8, 8),), None, dynamo=True, verbose=False, optimize=False)
        assert program is not None
        # As a release of torch would do that optimizes elsewhere than in `ONNXProgram.optimize`.
        program.model = optimizer.optimize(program.model)
        return program

    capture = capture_export(model, export, DYNAMO, optimize=True)
    assert [note for note in capture.notes if note.startswith("the graph before torch's optimizer was not seen")]
    assert {(found.kind, found.confidence) for found in capture.recorded.values()} == {("inferred", 0.7)}


def test_graph_that_torch_optimized_before_it_was_seen_is_not_taken_for_the_original() -> None:
    from onnxscript import optimizer

    model = block()

    def export() -> Any:
        program = torch.onnx.export(model, (torch.ones(1, 3, 8, 8),), None, dynamo=True, verbose=False, optimize=False)
        assert program is not None
        # As a release of torch would do that optimizes in two steps, of which the first one is not seen.
        program.model = optimizer.optimize(program.model)
        program.optimize()
        return program

    capture = capture_export(model, export, DYNAMO, optimize=True)
    assert [note for note in capture.notes if "torch rewrote it earlier: conv2d is gone" in note]
    assert {found.kind for found in capture.recorded.values()} == {"inferred"}


def test_first_graph_is_the_original_where_torch_optimizes_twice() -> None:
    model = block()

    def export() -> Any:
        program = torch.onnx.export(model, (torch.ones(1, 3, 8, 8),), None, dynamo=True, verbose=False)
        assert program is not None
        program.optimize()
        return program

    capture = capture_export(model, export, DYNAMO, optimize=True)
    assert capture.notes == ()
    assert {node.op_type for node in capture.original_graph.graph} == {"Conv", "BatchNormalization", "Relu"}


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
