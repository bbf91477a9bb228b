"""Modules that are called in unusual ways: the file names them, and the check against PyTorch agrees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from tests.support.plain import export_plainly
from torch import nn

from modelexport.analysis.verification_report import Verdict
from modelexport.capture.fx.stage_decomposition import outer_calls
from modelexport.errors import InputError
from modelexport.exporting.export import export_model
from modelexport.storage.metadata_stores import strip_hierarchy
from modelexport.verification.contamination_by_value import validate_owners_by_value
from modelexport.verification.forward_recording import record_forward
from modelexport.verification.module_verification import verify_modules

pytestmark = pytest.mark.integration
STRATEGIES = ("fx", "htp", "usage_based")


class Risky(nn.Module):
    """Computes something, and then gives up."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError(f"no use for {self.lin(x).shape}")


class Catching(nn.Module):
    """Goes on by itself where its child gives up."""

    def __init__(self) -> None:
        super().__init__()
        self.risky, self.norm = Risky(), nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            x = self.risky(x)
        except ValueError:
            x = torch.tanh(x * 2) + 0.5
        return self.norm(x).sigmoid()


class Averaged(nn.Module):
    """Has a `__call__` of its own, as wrappers that keep averages of weights do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 2


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.averaged = Averaged()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.averaged(x + 1) - 1


def example() -> torch.Tensor:
    return torch.randn(2, 4, generator=torch.Generator().manual_seed(3))


def owners(document: Any) -> dict[str, str]:
    return {node.op: node.module for node in document.nodes if node.op != "Constant"}


@pytest.mark.regression
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_right_model_is_accepted_when_it_catches_what_a_child_raises(strategy: str, tmp_path: Path) -> None:
    model = Catching().eval()
    result = export_model(model, example(), tmp_path / "model.onnx", strategy=strategy)
    assert owners(result.document) == {
        "Mul": "",
        "Tanh": "",
        "Add": "",
        "LayerNormalization": "norm",
        "Sigmoid": "",
    }
    report = validate_owners_by_value(tmp_path / "model.onnx", model, example())
    assert report.is_valid
    assert report.cases == ()


def test_what_runs_after_a_caught_exception_is_the_caller_s_work() -> None:
    seen: list[str] = []
    record_forward(Catching().eval(), (example(),), {}, on_output=lambda tensor, call, read: seen.append(call))
    # The norm's kernel has results beside the one that it returns.
    assert list(dict.fromkeys(seen)) == ["risky.lin", "", "norm"]
    assert [call for call in seen if call != "risky.lin"] == ["", "", "", *["norm"] * seen.count("norm"), ""]
    calls = record_forward(Catching().eval(), (example(),), {})
    assert calls["risky"].outputs == {}


@pytest.mark.regression
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", [Averaged, Wrapped])
def test_module_with_a_call_of_its_own_owns_its_work_and_has_a_boundary(
    kind: type[nn.Module], strategy: str, tmp_path: Path
) -> None:
    model = kind().eval()
    path = "averaged" if kind is Wrapped else ""
    result = export_model(model, example(), tmp_path / "model.onnx", strategy=strategy)
    assert owners(result.document)["Mul"] == path
    (call,) = (call for call in result.document.calls if call.path == path)
    assert [tensor.name for tensor in call.inputs] == ["x"]
    assert all(tensor.tensor for tensor in (*call.inputs, *call.outputs))
    assert len(call.outputs) == 1
    assert validate_owners_by_value(tmp_path / "model.onnx", model, example()).cases == ()


def test_file_of_a_module_with_a_call_of_its_own_is_torch_s_own(tmp_path: Path) -> None:
    model = Wrapped().eval()
    plain = export_plainly(model, (example(),), {}, tmp_path / "plain.onnx")
    export_model(model, example(), tmp_path / "model.onnx", strategy="fx")
    assert strip_hierarchy(onnx.load(tmp_path / "model.onnx")) == plain


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_model_with_a_scripted_child_can_be_judged(tmp_path: Path) -> None:
    class Scripting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.lin = torch.jit.script(nn.ReLU()), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.act(self.lin(x))

    calls = record_forward(Scripting().eval(), (example(),), {})
    assert list(calls) == ["", "lin"]


def test_stage_is_only_what_no_other_module_calls_after_a_caught_exception() -> None:
    model = Catching().eval()
    with outer_calls(model) as calls:
        model(example())
        model.norm(example())
    assert [path for path, _ in calls] == ["", "norm"]


class Shadowed(nn.Module):
    """Its children have names of methods, so that looking them up as attributes finds the methods."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("parameters", "children", "modules", "state_dict"):
            # torch refuses the name for a new child, but not where there is an attribute of that name already.
            setattr(self, name, [])
            setattr(self, name, nn.Sequential(nn.Linear(4, 4), nn.Tanh()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for child in self._modules.values():
            x = child(x) if child is not None else x
        return x


def test_children_with_names_of_methods_are_no_obstacle(tmp_path: Path) -> None:
    model, x, path = Shadowed().eval(), torch.randn(2, 4), tmp_path / "m.onnx"
    result = export_model(model, x, path)
    calls = {call.id for call in result.document.calls}
    assert calls >= {"parameters", "parameters.0", "children.1", "modules", "state_dict"}
    assert {record.verdict for record in verify_modules(path, model, x).calls} == {Verdict.WITHIN}


def test_error_names_a_child_with_the_name_of_a_method(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"in parameters\.0: Linear\(in_features=4"):
        export_model(Shadowed(), torch.randn(2, 3), tmp_path / "m.onnx")
