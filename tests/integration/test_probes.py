"""Files are run on other values than the example's: what was recorded as a constant shows, and where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.support.command import Outcome
from torch import nn

import modelexport
from modelexport.hierarchy import CheckOutcome
from modelexport.verification.probes import ModelInputs, other_values

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]


class Gain(nn.Module):
    """Divides by the largest value, which it reads as a Python number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / float(x.abs().max())


class Audio(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.gain = Gain()
        self.last = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.gain(self.first(x)))
        return result


def audio() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Audio().eval(), torch.randn(3, 6)


def test_a_recorded_value_shows_on_a_probe_with_the_module_that_reads_it(tmp_path: Path) -> None:
    model, x = audio()
    path = tmp_path / "audio.onnx"
    plain = modelexport.export_model(model, x, path, strategy="htp", check="run")
    assert plain.check.outcome is CheckOutcome.EQUAL
    assert modelexport.verify_modules(path, model, x).passed
    probed = modelexport.verify_modules(path, model, x, probes=2)
    assert not probed.passed
    assert probed.check is not None
    assert (probed.check.outcome, probed.check.call) == (CheckOutcome.DIFFERENT, "gain")
    assert "with probe 1: 6 of 6 elements of output" in str(probed)
    result = modelexport.export_model(
        model, x, path, strategy="htp", allow_specialization=True, check="run", probes=1, overwrite=True
    )
    assert (result.check.outcome, result.check.call) == (CheckOutcome.DIFFERENT, "gain")


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, *, pixels: torch.Tensor) -> torch.Tensor:
        if not mask.bool().any():
            raise ValueError("nothing is left")
        return (self.embedding(ids) * mask[..., None]).sum(1) + pixels.mean()


def test_a_right_file_is_compared_on_all_probes(tmp_path: Path, command: Callable[..., Outcome]) -> None:
    torch.manual_seed(0)
    inputs = {
        "ids": torch.tensor([[1, 6, 2, 2], [0, 3, 3, 5]]),
        "mask": torch.ones(2, 4, dtype=torch.int64),
        "pixels": torch.rand(2, 3),
    }
    result = modelexport.export_model(
        Tokens(), inputs, tmp_path / "m.onnx", check="run", probes=3, allow_specialization=True, strategy="htp"
    )
    assert result.check.outcome is CheckOutcome.EQUAL
    assert result.check.compared == ("probe 1", "probe 2", "probe 3")
    assert "also with probe 1; probe 2; probe 3" in str(result.check)
    (tmp_path / "net.py").write_text(
        "import torch\nfrom tests.integration.test_probes import audio as make\n", encoding="utf-8"
    )
    exported = command("export", f"{tmp_path}/net.py:make", f"{tmp_path}/n.onnx", "--strategy", "htp", "--probes", "1")
    assert exported.code == 0, "the check is off in tests, and so are its probes"
    found = command("verify", f"{tmp_path}/n.onnx", "--model", f"{tmp_path}/net.py:make", "--probes", "1")
    assert found.code == 1
    assert "on probes: its results in onnxruntime are not PyTorch's: with probe 1" in " ".join(found.stdout.split())


def test_probes_are_like_the_example() -> None:
    example = ModelInputs(
        (torch.randn(4, 8), [torch.tensor([2, 5, 7])]), {"mask": torch.ones(2, 3, dtype=torch.bool), "scale": 2.0}
    )
    seen = set()
    for change in other_values(example, 4):
        floats, (ids,) = change.tries[0].args
        assert floats.abs().max() <= 1.5 * example.args[0].abs().max()
        assert not torch.equal(floats, example.args[0])
        assert set(ids.tolist()) <= {2, 5, 7}
        assert change.tries[0].kwargs["mask"].dtype is torch.bool
        assert change.tries[0].kwargs["scale"] == 2.0
        seen.add(tuple(change.tries[0].kwargs["mask"].flatten().tolist()))
        assert torch.equal(change.tries[1].args[1][0], example.args[1][0])
    assert len(seen) > 1
    again = [change.tries[0].args[0] for change in other_values(example, 4)]
    assert all(torch.equal(one, two.tries[0].args[0]) for one, two in zip(again, other_values(example, 4), strict=True))
