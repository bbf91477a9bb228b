"""What tracing fixes to the example inputs: noted with its source line, and never the outcome of a silent fallback."""

from __future__ import annotations

import dataclasses
import inspect
import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from tests.support.command import Outcome
from torch import nn

import modelexport
from modelexport.strategies.registry import StrategyRegistry

pytestmark = pytest.mark.integration


class Gate(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x / 3
        return x * 1000


class Branching(nn.Module):
    """No exporter by way of torch.export takes this; a trace has the branch that the example inputs take."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gate(x)


class Repeating(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(int(x.sum().item())):
            x = x * 2
        return x


class Scaled(nn.Module):
    """torch.export takes this; its ONNX exporter has no translation for the distance."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x, x) * x.sum().item()


class Distance(nn.Module):
    """The same exporter takes this no better; a comparison of sizes is all that tracing fixes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 2:
            x = x * 2
        return torch.cdist(x, x)


class Pooled(nn.Module):
    """torch.export cannot tell whether what is left is long enough; a trace has the operators that compute it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.max_pool1d(x[x > 0][None, None], 2)


class Comparing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.equal(x, x.abs()) else x * 3


def place(model: type[nn.Module], code: str) -> str:
    """The file and line of a piece of a model's code."""
    lines, first = inspect.getsourcelines(model)
    number = next(number for number, line in enumerate(lines, first) if code in line)
    return f"{Path(__file__).name}:{number} "


def run(path: Path, x: torch.Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    return result


@pytest.mark.parametrize(
    ("model", "x", "code"),
    [
        pytest.param(Branching(), torch.ones(1), "if x.sum() > 0", id="branch"),
        pytest.param(Repeating(), torch.ones(3), ".item()", id="loop over a value"),
        pytest.param(Comparing(), torch.ones(3), "torch.equal", id="comparison that the tracer does not warn of"),
        pytest.param(Scaled(), torch.ones(2, 3), ".item()", id="other exporters fail for another reason"),
    ],
)
def test_trace_that_fixes_a_value_of_the_inputs_is_not_a_fallback_without_consent(
    model: nn.Module, x: torch.Tensor, code: str, tmp_path: Path
) -> None:
    with pytest.raises(modelexport.SpecializationError) as caught:
        modelexport.export_model(model, x, tmp_path / "m.onnx")
    line = place(Gate if isinstance(model, Branching) else type(model), code)
    assert len(caught.value.places) == 1
    assert line in caught.value.places[0]
    for part in (line, "torch.cond", "allow_specialization=True", "--allow-specialization", "--strategy htp"):
        assert part in str(caught.value)
    skipped = [error for name, error in caught.value.failures if "torchscript" in name]
    assert len(skipped) == 2
    assert all(line in str(error) for error in skipped)
    assert list(tmp_path.iterdir()) == []


def test_trace_of_usage_based_needs_consent_as_well(tmp_path: Path) -> None:
    """Its tracer warns of the value; that no other exporter takes the model has another reason."""
    with pytest.raises(modelexport.SpecializationError) as caught:
        modelexport.export_model(Scaled(), torch.ones(2, 3), tmp_path / "m.onnx", strategy="usage_based")
    assert [place(Scaled, ".item()") in found for found in caught.value.places] == [True]
    assert list(tmp_path.iterdir()) == []
    options = {"exporter": "torchscript", "strategy": "usage_based"}
    (note,) = modelexport.export_model(Branching(), torch.ones(1), tmp_path / "m.onnx", **options).notes
    assert "fixed a value that depends on the inputs" in note


class Tracing(modelexport.Strategy):
    """A plug-in with an exporter of its own name, which traces the model."""

    name = "tracing"

    def exporters(self, model: nn.Module) -> tuple[str, ...]:
        return ("own",)

    def capture(self, request: modelexport.CaptureRequest) -> modelexport.Capture:
        capture = modelexport.HtpStrategy().capture(request)
        return dataclasses.replace(capture, exporter="own")


@pytest.mark.parametrize(
    ("model", "x", "code"),
    [(Branching(), torch.ones(1), "if x.sum() > 0"), (Scaled(), torch.ones(2, 3), ".item()")],
)
def test_trace_of_a_plug_in_needs_consent_as_well(model: nn.Module, x: torch.Tensor, code: str, tmp_path: Path) -> None:
    registry = StrategyRegistry((modelexport.FxStrategy(), Tracing()))
    with pytest.raises(modelexport.SpecializationError) as caught:
        modelexport.export_model(model, x, tmp_path / "m.onnx", registry=registry)
    assert code in caught.value.places[0]
    assert "own: " not in str(caught.value), "it is not one of those that do not trace"
    options = {"registry": registry, "allow_specialization": True}
    result = modelexport.export_model(model, x, tmp_path / "m.onnx", **options)
    assert result.attempts[-1].name == "tracing (own)"
    assert code in result.notes[-1]


def test_error_names_the_reason_of_exporters_that_failed_for_another_one(tmp_path: Path) -> None:
    with pytest.raises(modelexport.SpecializationError, match="_cdist_forward"):
        modelexport.export_model(Scaled(), torch.ones(2, 3), tmp_path / "m.onnx")


def test_named_strategy_fixes_a_value_and_says_where(tmp_path: Path) -> None:
    result = modelexport.export_model(Branching(), torch.ones(1), tmp_path / "m.onnx", strategy="htp")
    (note,) = result.notes
    assert "fixed a value that depends on the inputs" in note
    assert place(Gate, "if x.sum() > 0") in note
    assert "`if x.sum() > 0:`" in note
    assert "module 'gate'" in note
    assert tuple(result["notes"]) == (note,)


def test_fallback_with_consent_is_the_trace_and_says_where_it_fixed_what(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    result = modelexport.export_model(Branching(), torch.ones(1), path, allow_specialization=True)
    assert [(a.exporter, a.variant, a.error is None) for a in result.attempts] == [
        ("dynamo", "", False),
        ("dynamo", "with the values of constants", False),
        ("torchscript", "", True),
    ]
    assert place(Gate, "if x.sum() > 0") in str(result.attempts[0].error)
    (note,) = result.notes
    assert place(Gate, "if x.sum() > 0") in note
    assert modelexport.load(path).document.notes == result.notes
    np.testing.assert_allclose(run(path, -torch.ones(1)), [-1 / 3], rtol=1e-6)


def test_private_file_has_no_notes_because_they_name_source_lines(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    result = modelexport.export_model(Branching(), torch.ones(1), path, strategy="htp", private=True)
    assert len(result.notes) == 1
    assert modelexport.load(path).document.notes == ()


def test_read_that_the_tracer_does_not_warn_of_is_noted(tmp_path: Path) -> None:
    result = modelexport.export_model(Comparing(), torch.ones(3), tmp_path / "m.onnx", strategy="htp")
    (note,) = result.notes
    assert "depends on the inputs" in note
    assert place(Comparing, "torch.equal") in note


def test_comparison_of_sizes_is_noted_and_not_refused(tmp_path: Path) -> None:
    result = modelexport.export_model(Distance(), torch.ones(4, 3), tmp_path / "m.onnx")
    assert [(a.exporter, a.error is None) for a in result.attempts] == [("dynamo", False), ("torchscript", True)]
    (note,) = result.notes
    assert "fixed a size" in note
    assert place(Distance, "if x.shape[0] > 2") in note


def test_trace_that_fixes_nothing_serves_after_a_data_dependent_failure(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    result = modelexport.export_model(Pooled(), torch.arange(1.0, 9.0), path)
    assert "depends on the values of tensors" in str(result.attempts[0].error)
    assert result.notes == ()
    x = torch.tensor([-1.0, 4, -2, 3, 7, 5, -9, -9])
    np.testing.assert_array_equal(run(path, x), Pooled()(x).numpy())


def test_line_is_noted_once_for_all_calls_and_modules_that_run_it(tmp_path: Path) -> None:
    model = nn.Sequential(Gate(), Gate(), Gate())
    model.append(model[0])
    result = modelexport.export_model(model, torch.ones(2), tmp_path / "m.onnx", strategy="htp")
    (note,) = result.notes
    assert "module '0') and in 2 other modules" in note


@pytest.mark.parametrize("strategy", ["fx", "htp", "usage_based"])
def test_model_that_every_exporter_takes_has_no_notes(strategy: str, tmp_path: Path) -> None:
    result = modelexport.export_model(nn.Linear(3, 3), torch.ones(2, 3), tmp_path / "m.onnx", strategy=strategy)
    assert result.notes == ()


def test_warning_of_torch_about_the_export_is_a_note(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout()).train()
    result = modelexport.export_model(model, torch.ones(2, 3), tmp_path / "m.onnx", strategy="fx", training=True)
    (note,) = result.notes
    assert note.startswith("torch warns: Exporting a model while it is in training mode")


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    source = """
        import torch

        class Net(torch.nn.Module):
            def forward(self, x):
                if x.sum() > 0:
                    return x / 3
                return x * 1000

        def make():
            return Net(), torch.ones(1)
        """
    (tmp_path / "branching_net.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    return "branching_net:make"


def test_command_fails_without_consent_and_writes_nothing(
    command: Callable[..., Outcome], factory: str, tmp_path: Path
) -> None:
    outcome = command("export", factory, tmp_path / "m.onnx")
    assert outcome.code == 2
    assert "branching_net.py:6 `if x.sum() > 0:`" in outcome.stderr
    assert "--allow-specialization" in outcome.stderr
    assert not list(tmp_path.glob("m*"))


def test_command_with_consent_shows_what_was_fixed(
    command: Callable[..., Outcome], factory: str, tmp_path: Path
) -> None:
    outcome = command("export", factory, tmp_path / "m.onnx", "--allow-specialization", "--format", "json")
    assert outcome.code == 0
    (note,) = json.loads(outcome.stdout)["notes"]
    assert "branching_net.py:6 `if x.sum() > 0:`" in note
    assert note in outcome.stderr
    assert (tmp_path / "m.onnx").exists()
