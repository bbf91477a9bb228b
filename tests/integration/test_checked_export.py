"""An export runs its file in onnxruntime: a wrong file is exported in another way, or reported."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnxscript import opset18 as op
from tests.support.command import Outcome
from torch import nn

import modelexport
from modelexport.hierarchy import CheckOutcome
from modelexport.strategies.registry import default_registry

Translation = Callable[[Any], Any]


class Curve(nn.Module):
    """One operator, whose translation the tests replace."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.erf(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.curve = Curve()
        self.last = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.curve(self.first(x)))
        return result


def _far(x: Any) -> Any:
    return op.Sin(op.Add(x, op.Constant(value_float=9.0)))


def _near(x: Any) -> Any:
    return op.Mul(op.Erf(x), op.Constant(value_float=1.01))


def _invalid(x: Any) -> Any:
    return op.Add(x, op.Constant(value_ints=[1]))


def _export(path: Path, translation: Translation | None = None, **options: Any) -> modelexport.ExportResult:
    torch.manual_seed(0)
    if translation is not None:
        options["custom_translation_table"] = {torch.ops.aten.erf.default: translation}
    return modelexport.export_model(Net(), torch.randn(3, 4), path, **{"check": "run", **options})


@contextlib.contextmanager
def _torchscript_translates(translation: Callable[..., Any]) -> Iterator[None]:
    torch.onnx.register_custom_op_symbolic("aten::erf", translation, 18)
    try:
        yield
    finally:
        torch.onnx.unregister_custom_op_symbolic("aten::erf", 18)


def test_a_right_file_is_shown_to_be_right(tmp_path: Path) -> None:
    result = _export(tmp_path / "net.onnx")
    assert result.check.outcome is CheckOutcome.EQUAL
    assert result.check.output == "output"
    assert result.check.error is not None
    assert result.check.error < 1e-5
    assert (result.check.rtol, result.check.atol) == (1e-3, 1e-4)
    assert modelexport.load(result.onnx_path).document.check == result.check
    assert len(result.attempts) == 1


@pytest.mark.parametrize("translation", [_invalid, _far])
def test_auto_takes_the_exporter_whose_file_is_right(translation: Translation, tmp_path: Path) -> None:
    result = _export(tmp_path / "net.onnx", translation)
    assert result.document.exporter == "torchscript"
    assert result.check.outcome is CheckOutcome.EQUAL
    assert any("the file of fx (dynamo) was not used" in note for note in result.notes)
    assert any("the file of fx (dynamo) was not used" in note for note in result.document.notes)
    assert [attempt.exporter for attempt in result.attempts if attempt.error is None] == ["torchscript"]
    torch.manual_seed(0)
    model, inputs = Net().eval(), torch.randn(3, 4)
    session = onnxruntime.InferenceSession(result.onnx_path)
    (found,) = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
    np.testing.assert_allclose(found, model(inputs).detach().numpy(), rtol=1e-3, atol=1e-4)


def test_without_the_check_the_wrong_file_is_written(tmp_path: Path) -> None:
    result = _export(tmp_path / "net.onnx", _far, check="off")
    assert (result.document.exporter, result.check.outcome) == ("dynamo", CheckOutcome.UNCHECKED)
    assert result["summary"]["success"] is True


@pytest.mark.parametrize(
    ("translation", "outcome"), [(_invalid, CheckOutcome.LOAD_FAILED), (_far, CheckOutcome.DIFFERENT)]
)
def test_a_named_strategy_is_not_replaced(translation: Translation, outcome: CheckOutcome, tmp_path: Path) -> None:
    result = _export(tmp_path / "net.onnx", translation, strategy="fx")
    assert (result.document.exporter, result.check.outcome) == ("dynamo", outcome)
    assert result.check.call == "curve"
    assert result["summary"]["success"] is False
    assert modelexport.load(result.onnx_path).document.check == result.check


def test_of_wrong_files_the_least_wrong_is_written(tmp_path: Path) -> None:
    """TorchScript's file is far off, so dynamo's is written, although it was rejected before."""

    def far(graph: Any, x: Any) -> Any:
        return graph.op("Sin", graph.op("Add", x, graph.op("Constant", value_t=torch.tensor(9.0))))

    with _torchscript_translates(far):
        result = _export(tmp_path / "net.onnx", _near)
        other = _export(tmp_path / "other.onnx", _far, strategy="htp")
    assert (result.document.exporter, result.check.outcome) == ("dynamo", CheckOutcome.DIFFERENT)
    assert result.check.call == "curve"
    assert other.check.error is not None
    assert result.check.error is not None
    assert result.check.error < other.check.error
    assert result.attempts[-1].exporter == "dynamo"
    wrong = [attempt.name for attempt in result.attempts if "not PyTorch's" in (attempt.error or "")]
    assert wrong == ["fx (dynamo, not optimized by torch)", "htp (torchscript)"]
    assert any("the file of htp (torchscript) was not used" in note for note in result.notes)
    assert not any("the file of fx (dynamo) was not used" in note for note in result.notes)
    skipped = [attempt.name for attempt in result.attempts if not attempt.tried]
    assert skipped == ["usage_based (dynamo)", "usage_based (torchscript)"]
    onnx.checker.check_model(result.onnx_path)


class _NoAttributions(collections.UserDict[Any, Any]):
    """Evidence that cannot be read."""

    def __iter__(self) -> Iterator[Any]:
        raise modelexport.ContractError("no owner for 1 node: please report this")


class _Careless(modelexport.Strategy):
    """A plug-in that breaks its contract in the attempt after the one whose file is wrong."""

    name = "careless"

    def exporters(self, model: nn.Module) -> tuple[str, ...]:
        return ("dynamo",)

    def capture(self, request: modelexport.CaptureRequest) -> modelexport.Capture:
        found = modelexport.FxStrategy().capture(request)
        return dataclasses.replace(found, recorded=_NoAttributions()) if request.variant.unoptimized else found


def test_a_bug_in_a_later_attempt_is_reported_instead_of_the_wrong_file(tmp_path: Path) -> None:
    default_registry.cache_clear()
    try:
        modelexport.register_strategy("careless", _Careless)
        with pytest.raises(modelexport.ContractError, match="please report this"):
            _export(tmp_path / "net.onnx", _far, strategy="careless")
    finally:
        default_registry.cache_clear()
    assert not [*tmp_path.iterdir()]


def test_a_file_that_the_optimizer_of_torch_broke_is_exported_without_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    optimize = torch.onnx.ONNXProgram.optimize

    def broken(program: torch.onnx.ONNXProgram) -> None:
        optimize(program)
        node = next(node for node in program.model.graph if node.op_type == "Erf")
        node.op_type = "Sin"

    monkeypatch.setattr(torch.onnx.ONNXProgram, "optimize", broken)
    result = _export(tmp_path / "net.onnx")
    assert result.check.outcome is CheckOutcome.EQUAL
    assert [attempt.name for attempt in result.attempts] == ["fx (dynamo)", "fx (dynamo, not optimized by torch)"]
    torch.manual_seed(0)
    plain = torch.onnx.export(Net().eval(), (torch.randn(3, 4),), dynamo=True, optimize=False, verbose=False)
    assert plain is not None
    plain.save(tmp_path / "plain.onnx")
    stripped = modelexport.strip_hierarchy(onnx.load(result.onnx_path))
    assert stripped.SerializeToString() == (tmp_path / "plain.onnx").read_bytes()


def test_a_nondeterministic_model_is_recognised(tmp_path: Path) -> None:
    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    result = modelexport.export_model(Noise(), torch.randn(3, 4), tmp_path / "noise.onnx", check="run")
    assert result.check.outcome is CheckOutcome.NONDETERMINISTIC
    assert len(result.attempts) == 1


class Sorted(nn.Module):
    """Sorts sums of the same elements, each in another order: rounding decides which is larger."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = nn.Linear(64, 1, bias=False)
        nn.init.constant_(self.sum.weight, 0.1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sums = torch.cat([self.sum(x.roll(i, 1)) for i in range(8)], 1)
        return torch.topk(sums, 4).indices, torch.erf(x)


def _export_sorted(path: Path, **options: Any) -> modelexport.ExportResult:
    torch.manual_seed(0)
    return modelexport.export_model(Sorted(), torch.randn(3, 64), path, check="run", **options)


def test_results_that_rounding_decides_are_not_called_different(tmp_path: Path) -> None:
    result = _export_sorted(tmp_path / "sorted.onnx")
    assert result.check.outcome is CheckOutcome.UNSTABLE
    assert "if the results of modules are rounded differently" in str(result.check)
    assert len(result.attempts) == 1
    assert not result.check.is_wrong


def test_a_wrong_output_beside_an_unstable_one_is_found(tmp_path: Path) -> None:
    table = {torch.ops.aten.erf.default: _near}
    check = _export_sorted(tmp_path / "sorted.onnx", strategy="fx", custom_translation_table=table).check
    assert (check.outcome, check.output) == (CheckOutcome.DIFFERENT, "1")


def test_large_files_are_only_loaded(tmp_path: Path) -> None:
    result = _export(tmp_path / "net.onnx", _far, check_bytes=10)
    assert result.check.outcome is CheckOutcome.LOADED
    assert "check_bytes" in result.check.reason
    assert _export(tmp_path / "loaded.onnx", _far, check="load").check.outcome is CheckOutcome.LOADED
    # An invalid file is noticed all the same.
    assert _export(tmp_path / "invalid.onnx", _invalid, check="load").document.exporter == "torchscript"


def test_a_type_without_kernels_is_not_an_error(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4)).bfloat16()
    result = modelexport.export_model(model, torch.tensor([1, 2]), tmp_path / "net.onnx", check="run")
    assert result.check.outcome in (CheckOutcome.NO_KERNEL, CheckOutcome.EQUAL)
    assert not result.check.is_wrong
    assert len(result.attempts) == 1


def test_a_file_that_cannot_be_run_here_is_not_called_wrong(tmp_path: Path) -> None:
    """Operators of another runtime, and weights that are not in the file."""

    class Custom(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.onnx.ops.symbolic("my.runtime::Curve", (x,), dtype=x.dtype, shape=x.shape, version=1)

    custom = modelexport.export_model(Custom(), torch.randn(3), tmp_path / "custom.onnx", check="run")
    assert (custom.document.exporter, custom.check.outcome) == ("dynamo", CheckOutcome.UNCHECKED)
    assert "my.runtime" in custom.check.reason
    empty = _export(tmp_path / "empty.onnx", export_params=False)
    assert (empty.document.exporter, empty.check.outcome) == ("dynamo", CheckOutcome.UNCHECKED)


@pytest.mark.parametrize(("option", "value"), [("check", "fast"), ("check_bytes", -1), ("check_bytes", "1 GB")])
def test_unknown_levels_are_refused(option: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(modelexport.InputError, match=option):
        _export(tmp_path / "net.onnx", **{option: value})
    assert list(tmp_path.iterdir()) == []


def test_the_environment_sets_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert _export(tmp_path / "off.onnx", check=None).check.outcome is CheckOutcome.UNCHECKED
    monkeypatch.delenv("MODELEXPORT_CHECK")
    assert _export(tmp_path / "run.onnx", check=None).check.outcome is CheckOutcome.EQUAL
    monkeypatch.setenv("MODELEXPORT_CHECK", "sometimes")
    with pytest.raises(modelexport.InputError, match="MODELEXPORT_CHECK is 'sometimes'"):
        _export(tmp_path / "none.onnx", check=None)


def test_the_command_exits_with_1_and_names_the_module(
    command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(
        "import torch\nfrom tests.integration.test_checked_export import Net\n\n"
        "def make():\n    torch.manual_seed(0)\n    return Net(), torch.randn(3, 4)\n",
        encoding="utf-8",
    )
    with _torchscript_translates(lambda graph, x: graph.op("Sin", x)):
        wrong = command("export", "net.py:make", "wrong.onnx", "--strategy", "htp", "--check", "run")
    assert wrong.code == 1
    assert "WRONG: its results in onnxruntime are not PyTorch's" in wrong.stdout
    assert "the error begins in curve" in wrong.stdout
    assert Path("wrong.onnx").exists()
    right = command("export", "net.py:make", "right.onnx", "--strategy", "htp", "--check", "run")
    assert (right.code, "check: runs in onnxruntime and equals PyTorch" in right.stdout) == (0, True)


def test_a_search_that_does_not_find_the_module_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("modelexport.verification.file_check._ORIGIN_SECONDS", -1.0)
    with _torchscript_translates(lambda graph, x: graph.op("Sin", x)):
        check = _export(tmp_path / "wrong.onnx", strategy="htp").check
    assert (check.outcome, check.call) == (CheckOutcome.DIFFERENT, None)
    assert "where it begins is not known (TimeoutError: 0 of " in check.reason


def _unreadable() -> Any:
    raise TypeError("this tensor has no content")


def test_a_graph_that_cannot_be_written_is_exported_in_another_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    optimize = torch.onnx.ONNXProgram.optimize

    def with_empty_weight(program: torch.onnx.ONNXProgram) -> None:
        optimize(program)
        weight = next(value for value in program.model.graph.initializers.values() if value.shape == ir.Shape([4, 4]))
        weight.const_value = ir.LazyTensor(_unreadable, dtype=ir.DataType.FLOAT, shape=ir.Shape([4, 4]))

    monkeypatch.setattr(torch.onnx.ONNXProgram, "optimize", with_empty_weight)
    result = _export(tmp_path / "net.onnx")
    assert result.check.outcome is CheckOutcome.EQUAL
    assert "the graph cannot be written: TypeError: this tensor has no content" in (result.attempts[0].error or "")
