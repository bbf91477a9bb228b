"""The one run before a model is traced: it finds inputs that do not fit, and leaves everything as it was."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.command import Outcome
from tests.support.command_process import FACTORIES, in_process
from tests.support.meddlers import net
from tests.support.process_tasks import WithoutMessageError
from tests.support.untouched import changes, files, snapshot
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import modelexport
from modelexport.capture.diagnosis import check_forward
from modelexport.errors import InputError, StrategyIncompatibleError

pytestmark = pytest.mark.filterwarnings("ignore")


class Acting(nn.Module):
    """A linear layer, and whatever it is told to do in forward."""

    def __init__(self, act: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 3)
        self.table = nn.Embedding(4, 2, max_norm=0.1)
        self.register_buffer("steps", torch.zeros(2))
        self.register_buffer("spread", torch.ones(1).expand(5))
        self.seen: list[Any] = []
        self.cache: dict[str, Any] = {}
        self.act = (act,)

    def forward(self, x: torch.Tensor) -> Any:
        return self.act[0](self, x)


def example() -> torch.Tensor:
    return torch.randn(2, 4)


# --- inputs that do not fit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "x", "said"),
    [
        (nn.Sequential(nn.Linear(4, 3)).half(), example(), "(input 2x4 float32): RuntimeError: mat1 and mat2 must"),
        (nn.Sequential(nn.Linear(4, 3)).half(), example(), "Its weights are float16 and the inputs float32"),
        (nn.Sequential(nn.Linear(4, 3)), example().double(), "Its weights are float32 and the inputs float64"),
        (nn.Sequential(nn.Linear(4, 3)), torch.randn(2, 5), "in 0: Linear(in_features=4, out_features=3, bias=True)"),
        (nn.Sequential(nn.Linear(4, 3)), torch.randn(2, 5), "Check their shapes, types and values"),
        (nn.Linear(4, 3, device="meta"), example(), "(input 2x4 float32): RuntimeError"),
        (Acting(lambda *_: sys.exit(7)), example(), "SystemExit: 7"),
    ],
    ids=["half", "half, advice", "double", "shape, place", "shape, advice", "device", "exit"],
)
def test_inputs_that_pytorch_cannot_run_the_model_on_are_refused(
    model: nn.Module, x: torch.Tensor, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=r"forward fails on the example inputs \(") as caught:
        modelexport.export_model(model, x, tmp_path / "model.onnx")
    assert said in str(caught.value)
    assert capfd.readouterr() == ("", ""), "torch says nothing before"
    assert list(tmp_path.iterdir()) == []


def test_command_refuses_inputs_of_another_type_in_one_line(command: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = command("export", f"{FACTORIES}:half_net", tmp_path / "net.onnx", "--input-shape", "x=2x3x4x4")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert "(x 2x3x4x4 float32): " in outcome.error
    assert "Its weights are float16" in outcome.error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
def test_command_of_its_own_process_prints_one_line_for_a_wrong_shape(tmp_path: Path) -> None:
    outcome = in_process("export", f"{FACTORIES}:net", tmp_path / "net.onnx", "--input-shape", "x=2x5x4x4")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert "(x 2x5x4x4 float32): " in outcome.error
    assert ": Conv2d(3, " in outcome.error


def test_axis_of_size_one_that_the_model_cannot_take_twice_is_refused(tmp_path: Path) -> None:
    model = Acting(lambda model, x: model.lin(x.view(4)))
    assert check_forward(model, (torch.randn(1, 4),), {}) == ()
    with pytest.raises(
        InputError, match=r"a dynamic axis of size 1 is exported with size 2: Acting.*\(x 2x4 float32\)"
    ):
        modelexport.export_model(model, torch.randn(1, 4), tmp_path / "model.onnx", dynamic={"x": {0: "rows"}})


# --- results without a tensor ----------------------------------------------------------------------------------------


class Holder:
    def __init__(self, tensor: torch.Tensor | None = None) -> None:
        self.tensor = tensor


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda *_: None, "returns None on"),
        (lambda *_: "text", "returns a value of type str on"),
        (lambda model, x: (model.lin(x) for _ in range(2)), "returns a value of type generator on"),
        (lambda *_: (), "returns an empty tuple on"),
        (lambda *_: {"a": None, "b": "text"}, "returns a value of type dict on"),
        (lambda *_: Holder(), "returns a value of type Holder on"),
        (lambda model, _: model.steps.add_(1) and None, "fails on|returns None on"),
    ],
    ids=["None", "string", "generator", "empty", "nothing inside", "object", "only writes"],
)
@pytest.mark.parametrize("strategy", ["auto", "htp"])
def test_model_that_returns_no_tensor_is_refused(
    act: Callable[[Any, torch.Tensor], Any], said: str, strategy: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        modelexport.export_model(Acting(act), example(), tmp_path / "model.onnx", strategy=strategy)
    assert list(tmp_path.iterdir()) == []


@dataclasses.dataclass
class Result:
    states: torch.Tensor


@pytest.mark.parametrize(
    "act",
    [
        lambda model, x: model.lin(x).detach().numpy(),
        lambda _, x: x.shape[0],
        lambda model, x: (model.lin(x), None, "text"),
        lambda model, x: Result(model.lin(x)),
        lambda model, x: [Holder(model.lin(x))],
        lambda *_: np.float32(1),
    ],
    ids=["array", "size", "tensor and others", "dataclass", "object", "scalar"],
)
def test_result_that_an_exporter_may_take_is_left_to_it(act: Callable[[Any, torch.Tensor], Any]) -> None:
    assert check_forward(Acting(act), (example(),), {}) == ()


def test_numbers_alone_are_not_exported_as_an_empty_graph(tmp_path: Path) -> None:
    with pytest.raises(StrategyIncompatibleError, match="forward returns no tensor"):
        modelexport.export_model(Acting(lambda *_: (1, 2.0)), example(), tmp_path / "model.onnx", strategy="htp")


# --- everything is as before -----------------------------------------------------------------------------------------


def normalize_weights(model: Acting, x: torch.Tensor) -> torch.Tensor:
    model.table((x > 0).long())
    return model.lin(x)


def overwrite_weights(model: Acting, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        model.lin.weight.data.view(-1)[1:].mul_(2)
    return model.lin(x)


def count(model: Acting, x: torch.Tensor) -> torch.Tensor:
    model.steps.add_(1)
    model.steps = model.steps + 1
    return model.lin(x)


def keep(model: Acting, x: torch.Tensor) -> torch.Tensor:
    model.kept = model.lin(x)
    model.seen.append(model.kept)
    model.cache["x"] = x
    return model.kept


def grow(model: Acting, x: torch.Tensor) -> torch.Tensor:
    model.more = nn.Parameter(torch.ones(3))
    model.child = nn.Linear(3, 3)
    del model.lin.bias
    return model.child(x @ model.lin.weight.T)


def draw(model: Acting, x: torch.Tensor) -> torch.Tensor:
    model.train()
    return model.lin(x + torch.rand(4) + float(np.random.rand()))


def update_statistics(model: Acting, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.batch_norm(x[:, :2], model.steps, model.steps.clone(), training=True)


CHANGES = [normalize_weights, overwrite_weights, count, keep, grow, draw, update_statistics]


@pytest.mark.parametrize("fails", [False, True], ids=["runs", "fails"])
@pytest.mark.parametrize("change", CHANGES)
def test_model_is_as_before_whatever_its_forward_changes(change: Callable[..., torch.Tensor], fails: bool) -> None:
    def act(model: Acting, x: torch.Tensor) -> torch.Tensor:
        result = change(model, x)
        return result @ torch.ones(99) if fails else result

    model, x = Acting(act), example()
    before, content = snapshot(model), x.clone()
    if fails:
        with pytest.raises(InputError):
            check_forward(model, (x,), {})
    else:
        assert check_forward(model, (x,), {}) == ()
    assert changes(before, snapshot(model)) == []
    assert (model.seen, model.cache) == ([], {})
    assert torch.equal(x, content)


def test_model_runs_in_the_mode_it_is_exported_in() -> None:
    modes = []
    model = Acting(lambda model, x: modes.append(model.training) or model.lin(x)).train()
    check_forward(model, (example(),), {})
    check_forward(model, (example(),), {}, training=True)
    assert modes == [False, True]


class CachedGrid(nn.Module):
    """Keeps what it computed for a shape, as detection heads do."""

    def __init__(self) -> None:
        super().__init__()
        self.shape: torch.Size | None = None
        self.grid = torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.shape != x.shape:
            self.shape, self.grid = x.shape, torch.arange(x.shape[1]) * 1.0
        return x + self.grid


@pytest.mark.parametrize("strategy", ["fx", "htp"])
def test_model_that_keeps_tensors_on_itself_computes_as_before(strategy: str, tmp_path: Path) -> None:
    model, x = CachedGrid(), example()
    grid = model.grid
    modelexport.export_model(model, x, tmp_path / "model.onnx", strategy=strategy)
    assert (model.shape, model.grid) == (None, grid)
    assert torch.equal(model(x), x + torch.arange(4))


# --- what is run, and what is not ------------------------------------------------------------------------------------


def test_model_runs_once_and_is_never_copied_also_where_exporters_fail(tmp_path: Path) -> None:
    runs = []

    class Undecided(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if type(x) is torch.Tensor and not torch.compiler.is_compiling():
                runs.append(1)
            return x + 1 if x.sum() > 0 else x - 1

        def __deepcopy__(self, memo: Any) -> Any:
            pytest.fail("copied")

    with pytest.raises(StrategyIncompatibleError, match="depends on the values of tensors"):
        modelexport.export_model(Undecided(), example(), tmp_path / "model.onnx", strategy="fx")
    assert runs == [1]


def test_control_flow_is_not_compiled_to_be_checked() -> None:
    """Compiled code is numbered, and the numbers are in the stack traces that torch writes into the file."""

    def decide(_: Acting, x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.is_grad_enabled())
        if not torch.is_grad_enabled() and again:
            raise ValueError("not like this")
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    for again in (False, True):
        seen: list[bool] = []
        torch._dynamo.reset()
        before = torch.fx.graph_module._loader.next_id
        assert check_forward(Acting(decide), (example(),), {}) == ()
        assert torch.fx.graph_module._loader.next_id == before
        assert seen == [False, True][: 1 + again]


def test_second_run_starts_where_the_first_did() -> None:
    """What fails when it is watched is run unwatched, and nothing of the first run is left in the way."""

    def once(model: Acting, x: torch.Tensor) -> torch.Tensor:
        assert not model.seen, "runs once"
        model.seen.append(1)
        model.steps.add_(1)
        assert torch.equal(model.steps, torch.ones(2))
        if not torch.is_grad_enabled():
            raise ValueError("not like this")
        return model.lin(x)

    assert check_forward(Acting(once), (example(),), {}) == ()


def test_forward_that_needs_gradients_runs() -> None:
    def slope(model: Acting, x: torch.Tensor) -> torch.Tensor:
        y = model.lin(x.requires_grad_())
        return torch.autograd.grad(y.sum(), x)[0]

    assert check_forward(Acting(slope), (example(),), {}) == ()


@torch.library.custom_op("modelexport_tests::elsewhere", mutates_args=(), device_types="cuda")
def elsewhere(x: torch.Tensor) -> torch.Tensor:
    """An operator that this machine has no kernel for."""
    return x.clone()


@elsewhere.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda _, x: elsewhere(x), "NotImplementedError"),
        (lambda model, x: model.lin(x) + torch.zeros(2**50, 1, 1), "RuntimeError"),
    ],
    ids=["no kernel", "no memory"],
)
def test_model_that_cannot_run_here_is_left_to_the_exporters_with_a_note(
    act: Callable[[Any, torch.Tensor], Any], error: str
) -> None:
    (note,) = check_forward(Acting(act), (example(),), {})
    assert note.startswith(f"the example inputs were not checked: PyTorch cannot run the model here ({error}: ")


def test_fake_tensors_are_not_run_and_tensors_without_values_are() -> None:
    with FakeTensorMode():
        fake = nn.Linear(4, 3)
    assert check_forward(fake, (example(),), {}) == (
        "the example inputs were not checked: the model or its inputs are fake tensors",
    )
    assert check_forward(nn.Linear(4, 3, device="meta"), (torch.randn(2, 4, device="meta"),), {}) == ()


def test_sparse_input_is_said_to_become_a_dense_one() -> None:
    for x in (example().to_sparse(), example().to_sparse_csr()):
        assert check_forward(nn.Linear(4, 3), (x,), {}) == (
            "the example input input is sparse: the graph takes a dense tensor",
        )


def test_model_with_uninitialized_weights_is_exported_and_computes_afterwards(tmp_path: Path) -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    result = modelexport.export_model(model, example(), tmp_path / "model.onnx", strategy="fx")
    assert {node.module for node in result.document.nodes} == {"0", "1"}
    assert model(example()).shape == (2, 3)


def test_inputs_that_cannot_be_copied_stay_as_they_are() -> None:
    x = (torch.ones(2, 4, requires_grad=True) * 2) + 1
    with pytest.raises(RuntimeError):
        copy.deepcopy(x)
    assert check_forward(Acting(lambda model, x: model.lin(x.detach().mul_(3))), (x,), {}) == ()
    assert torch.equal(x, torch.full((2, 4), 3.0))


def test_files_and_model_are_as_before_when_inputs_are_refused(tmp_path: Path) -> None:
    model, x = net(), torch.randn(2, 5)
    before = snapshot(model)
    with pytest.raises(InputError):
        modelexport.export_model(model, x, tmp_path / "model.onnx")
    assert changes(before, snapshot(model)) == []
    assert files(tmp_path) == {}


class FailsWithoutMessage(nn.Module):
    """Raises an exception whose message cannot be shown."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise WithoutMessageError


def test_error_of_the_model_is_ours_when_its_message_cannot_be_shown(tmp_path: Path) -> None:
    shown = r"WithoutMessageError: \(its message cannot be shown: RuntimeError\)"
    with pytest.raises(InputError, match=shown):
        modelexport.export_model(FailsWithoutMessage(), torch.ones(2), tmp_path / "m.onnx")
    with pytest.raises(InputError, match=shown):
        modelexport.make_example_inputs(FailsWithoutMessage())
    with pytest.raises(InputError, match=shown):
        modelexport.load_model("tests.support.process_tasks:fail_without_message(0)")
