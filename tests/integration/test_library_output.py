"""What libraries print while they export belongs to the attempt; what anybody else prints is shown."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tests.support.command import Outcome
from torch import nn

import modelexport

pytestmark = pytest.mark.integration


class Pick(nn.Module):
    """torch prints the graph so far where a value of a tensor is a number of Python."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sys.stderr.write("the model itself\n")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: sys.stdout.write("another thread\n"))
        return x[:, int(x.sum(0).argmax())] * 2


def test_graphs_that_torch_prints_are_kept_with_the_attempt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    streams = sys.stdout, sys.stderr
    with pytest.raises(modelexport.SpecializationError) as caught:
        modelexport.export_model(Pick(), torch.randn(3, 4), tmp_path / "m.onnx")
    assert (sys.stdout, sys.stderr) == streams
    shown = capsys.readouterr()
    assert "def forward" not in shown.out + shown.err
    assert "the model itself" in shown.err
    assert "another thread" in shown.out
    outputs = [attempt.output for attempt in caught.value.attempts if attempt.exporter == "dynamo" and attempt.tried]
    assert all("def forward" in output and "aten.argmax" in output for output in outputs)
    assert not any("the model itself" in output or "another thread" in output for output in outputs)


class Long(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(100):
            x = x.sin()
        return x[:, int(x.sum(0).argmax())]


def test_output_of_an_attempt_is_limited(tmp_path: Path) -> None:
    with pytest.raises(modelexport.SpecializationError) as caught:
        modelexport.export_model(Long(), torch.randn(3, 4), tmp_path / "m.onnx", dynamic={"x": {0: "n"}})
    assert max(len(attempt.output) for attempt in caught.value.attempts) == 10_001


def test_torch_prints_where_it_is_asked_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    modelexport.export_model(nn.ReLU(), torch.ones(2), tmp_path / "m.onnx", strategy="fx", verbose=True)
    assert "[torch.onnx]" in capsys.readouterr().out


@pytest.mark.parametrize("options", [(), ("-v",)])
def test_command_shows_it_with_verbose_only(
    options: tuple[str, ...],
    command: Callable[..., Outcome],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = "import torch\nclass Pick(torch.nn.Module):\n    def forward(self, x):\n"
    (tmp_path / "picking.py").write_text(f"{source}        return x[:, int(x.sum(0).argmax())] * 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    outcome = command("export", "picking:Pick", tmp_path / "m.onnx", "--input-shape", "x=3x4", *options)
    assert outcome.code == 2
    assert outcome.stderr.splitlines()[-1].startswith("error: this model depends on the values of its inputs")
    assert ("fx (dynamo): def forward" in outcome.stderr) is ("-v" in options)
    assert ("aten.argmax" in outcome.stderr) is ("-v" in options)
