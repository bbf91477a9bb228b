"""What forward itself changes is put back: state, hooks and notes of them, modes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.support.meddlers import Ending, WritesThroughData, do_nothing, example
from tests.support.untouched import changes, files, snapshot
from torch import nn

import modelexport
from modelexport.errors import ModelExportError, StrategyIncompatibleError
from modelexport.exporting.export import export_model
from modelexport.verification import validate_owners_by_value


class Undecided(nn.Module):
    """Runs in PyTorch but not in torch.export, and changes its own state on the way."""

    def __init__(self, change: Callable[[Undecided, torch.Tensor], None]) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 2, max_norm=0.1)
        self.register_buffer("steps", torch.zeros(1))
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.change(self, x)
        return x + 1 if x.sum() > 0 else x - 1


def add_in_place(model: Undecided, _: torch.Tensor) -> None:
    model.steps.add_(1)


def assign(model: Undecided, _: torch.Tensor) -> None:
    model.steps = model.steps + 1


def normalize_weights(model: Undecided, x: torch.Tensor) -> None:
    model.table((x > 0).long())


@pytest.mark.parametrize("change", [add_in_place, assign, normalize_weights])
def test_state_dict_is_as_before_when_a_model_that_changes_it_cannot_be_exported(
    change: Callable[[Undecided, torch.Tensor], None], folder: Path
) -> None:
    model = Undecided(change)
    before, artifact = snapshot(model), files(folder)
    with pytest.raises(StrategyIncompatibleError):
        export_model(model, example(), folder / "model.onnx", strategy="fx", overwrite=True)
    assert changes(before, snapshot(model)) == []
    assert files(folder) == artifact


def register_hooks(x: torch.Tensor, module: nn.Module) -> torch.Tensor:
    module.register_forward_pre_hook(do_nothing, with_kwargs=True)
    module.register_forward_hook(do_nothing, with_kwargs=True, always_call=True)
    return x + 1


def test_hooks_with_keyword_arguments_that_forward_registers_are_gone(folder: Path) -> None:
    child = nn.Identity()
    model = nn.Sequential(child, Ending(lambda x: register_hooks(x, child)))
    before = snapshot(model)
    export_model(model, example(), folder / "model.onnx", overwrite=True)
    assert changes(before, snapshot(model)) == []


def forget_determinism(x: torch.Tensor) -> torch.Tensor:
    torch.use_deterministic_algorithms(False)
    return x + 1


class HookedOnce(nn.Module):
    """Adds a hook at its first run and notes that it did, as current transformers models do."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.cached: object = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not getattr(self, "hooked", False):
            self.hooked = True
            self.lin.register_forward_hook(lambda *_: self.seen.append(1))
        self.seen: list[int] = []
        self.cached = self.lin(x)
        return self.cached


def test_note_of_hooks_that_forward_registers_goes_with_them(folder: Path) -> None:
    model = HookedOnce()
    export_model(model, torch.randn(2, 3), folder / "model.onnx", strategy="fx", overwrite=True)
    assert not hasattr(model, "hooked")
    assert model.cached is None
    model(torch.randn(2, 3))
    assert model.seen == [1]


def test_determinism_that_only_warns_is_as_before(folder: Path) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    model = Ending(forget_determinism)
    before = snapshot(model)
    export_model(model, example(), folder / "model.onnx", overwrite=True)
    assert changes(before, snapshot(model)) == []


X = torch.ones(1, 2)
USES: dict[str, Callable[[nn.Module, Path], object]] = {
    "export": lambda model, path: modelexport.export_model(model, X, path, strategy="htp", overwrite=True, check="run"),
    "verify": lambda model, path: modelexport.verify_modules(path, model, X),
    "validate": lambda model, path: validate_owners_by_value(path, model, X),
    "tag": lambda model, path: modelexport.tag_file(path, model, X, overwrite=True),
    "inputs": lambda model, path: modelexport.make_example_inputs(model),
}


@pytest.mark.parametrize("use", USES)
def test_weights_that_forward_writes_through_data_are_as_before(folder: Path, use: str) -> None:
    path = folder / "model.onnx"
    model = WritesThroughData()
    modelexport.export_model(model, X, path, strategy="htp", overwrite=True, check="off")
    before = snapshot(model)
    # The file cannot be equal: each call of the model has other weights.
    with contextlib.suppress(ModelExportError):
        USES[use](model, path)
    assert changes(before, snapshot(model)) == []


class Renormalized(nn.Module):
    """Scales its own weights in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.lin.weight.mul_(0.5)
        found: torch.Tensor = self.lin(x)
        return found


@pytest.mark.parametrize("strategy", ["fx", "htp"])
def test_finding_dynamic_axes_scales_no_weight(folder: Path, strategy: str) -> None:
    model, options = Renormalized(), {"strategy": strategy, "check": "off", "overwrite": True}
    before = snapshot(model)
    found, named = folder / "found.onnx", folder / "named.onnx"
    result = modelexport.export_model(model, torch.ones(3, 2), found, dynamic="auto", **options)
    assert result.dynamic_axes == {"x": {0: "batch"}}
    assert changes(before, snapshot(model)) == []
    modelexport.export_model(model, torch.ones(3, 2), named, dynamic=result.dynamic_axes, **options)
    assert found.read_bytes() == named.read_bytes()


class Cached(nn.Module):
    """Keeps a table for twice the length of the first input, as attention with relative positions does."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(64, 64)
        self.register_buffer("table", None, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            rows = [torch.full((64,), -float(row)) for row in range(2 * int(x.shape[1]))]
            self.register_buffer("table", torch.stack(rows), persistent=False)
        found: torch.Tensor = self.lin(x) + self.table[torch.arange(x.shape[1])]
        return found


def test_table_that_an_earlier_trace_cached_is_not_written(folder: Path) -> None:
    """torch traces again where the first trace failed, and then takes the fake table of the first for a weight."""
    axes = {"x": {0: "batch", 1: "n"}}
    result = modelexport.export_model(
        Cached(),
        torch.randn(2, 6, 64),
        folder / "model.onnx",
        dynamic=axes,
        optimize=False,
        check="run",
        overwrite=True,
    )
    assert (result.strategy, result.dynamic_axes) == ("htp", axes)
    assert result.check is not None
    assert not result.check.is_wrong
