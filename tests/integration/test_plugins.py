"""Strategies from outside: registered by a program, or found as a plug-in that is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import modelexport
from modelexport.strategies.registry import default_registry

pytestmark = pytest.mark.integration
EXAMPLE = Path(__file__).parents[2] / "examples" / "modelexport-unoptimized"


class Mine(modelexport.Strategy):
    """A strategy of a user's own."""

    name = "mine"

    def exporters(self, model: nn.Module) -> tuple[str, ...]:
        return ("dynamo",)

    def capture(self, request: modelexport.CaptureRequest) -> modelexport.Capture:
        return modelexport.FxStrategy().capture(request)


@pytest.fixture
def _own_registry() -> Iterator[None]:
    default_registry.cache_clear()
    yield
    default_registry.cache_clear()


@pytest.mark.usefixtures("_own_registry")
def test_registered_strategy_is_used_by_name_and_comes_last_in_auto(tmp_path: Path) -> None:
    modelexport.register_strategy("mine", Mine)
    result = modelexport.export_model(nn.Linear(4, 4), torch.ones(2, 4), tmp_path / "m.onnx", strategy="mine")
    assert result.strategy == result.document.strategy == "mine"
    assert modelexport.StrategySelector().recommend(nn.Linear(4, 4))[-1].strategy.name == "mine"


@pytest.mark.usefixtures("_own_registry")
@pytest.mark.parametrize(
    ("name", "cls", "says"),
    [("auto", Mine, "'auto'"), ("other", Mine, "'mine'"), ("mine", nn.Linear, "subclass"), ("", Mine, "''")],
)
def test_object_that_is_not_a_strategy_is_not_registered(name: str, cls: type, says: str) -> None:
    with pytest.raises(modelexport.InputError, match=says):
        modelexport.register_strategy(name, cls)


def test_installed_plug_in_is_found_and_used(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = ["-m", "pip", "install", "-qq", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site)]
    subprocess.run([sys.executable, *install, str(EXAMPLE)], check=True, stdin=subprocess.DEVNULL)
    command = [sys.executable, "-c", "from modelexport.cli.main import run; run()", "export", "builtin:bert-tiny"]
    done = subprocess.run(
        [*command, str(tmp_path / "m.onnx"), "--strategy", "unoptimized", "--format", "json"],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        check=True,
        text=True,
    )
    summary = json.loads(done.stdout)["summary"]
    assert summary["strategy"] == "unoptimized"
    assert summary["kinds"] == {"exact": summary["node_count"]}
