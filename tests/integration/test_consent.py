"""Consent to fixed values: asked where another value could change the file, and not for reads that only guard."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import modelexport
from modelexport.verification.probes import ModelInputs, other_values

pytestmark = pytest.mark.integration


class PathScore(nn.Module):
    """The score of a path of labels. Without lengths, all steps count: a mask that is the same for all inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(4))
        self.steps = nn.Parameter(torch.randn(4, 4))

    def forward(self, weights: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if weights.shape[:2] != labels.shape:
            raise ValueError("one label for each step")
        counted = torch.ones_like(labels, dtype=torch.uint8)
        if not counted[0].all():
            raise ValueError("a path has a first step")
        score = self.first[labels[0]] + weights[0].gather(1, labels[0][:, None])[:, 0]
        for step in range(1, len(weights)):
            moved = self.steps[labels[step - 1], labels[step]] + weights[step].gather(1, labels[step][:, None])[:, 0]
            score = score + moved * counted[step]
        return score


class Packed(nn.Module):
    """torch's recurrent layers read the batch size from a packed sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(5, 6, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        found: torch.Tensor = nn.utils.rnn.pad_packed_sequence(
            self.gru(packed)[0], batch_first=True, total_length=x.shape[1]
        )[0]
        return found


class Guarded(nn.Module):
    """The first guard reads a number, and the second one a truth value."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.abs().max().item() > 100:
            raise ValueError("too large")
        if not torch.isfinite(x).all():
            raise ValueError("not finite")
        found: torch.Tensor = self.linear(x)
        return found


def path_score() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return PathScore(), {"weights": torch.randn(5, 2, 4), "labels": torch.randint(4, (5, 2))}


def packed() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return Packed(), {"x": torch.randn(3, 7, 5), "lengths": torch.tensor([4, 7, 5])}


def guarded() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return Guarded(), {"x": torch.randn(2, 4)}


@pytest.mark.parametrize("make", [path_score, packed, guarded])
def test_a_read_that_only_guards_needs_no_consent(make: object, tmp_path: Path) -> None:
    assert callable(make)
    torch.manual_seed(0)
    model, inputs = make()
    result = modelexport.export_model(model, inputs, tmp_path / "m.onnx", check="run")
    assert result.attempts[-1].name == "htp (torchscript)"
    assert result.check.compared == ("probe 1", "probe 2", "probe 3")
    assert any("depends on the inputs" in note for note in result.notes)
    assert "needs no consent" in result.notes[-1]
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    for change in other_values(ModelInputs((), inputs), 12):
        other = change.tries[0].kwargs
        given = zip(session.get_inputs(), other.values(), strict=True)
        feeds = {value.name: tensor.numpy() for value, tensor in given}
        with torch.no_grad():
            np.testing.assert_allclose(session.run(None, feeds)[0], model(**other).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [path_score, packed, guarded])
def test_consent_is_asked_for_where_nothing_is_checked(make: object, tmp_path: Path) -> None:
    assert callable(make)
    model, inputs = make()
    with pytest.raises(modelexport.SpecializationError, match=r"allow_specialization=True") as caught:
        modelexport.export_model(model, inputs, tmp_path / "m.onnx", check="off")
    assert "the check is off" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


class Sign(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu() if x.sum() > 0 else x.sigmoid()


class Rare(nn.Module):
    """No probe takes this branch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 100 if x.max() > 100 else x * 2


class Clamped(nn.Module):
    """No probe takes this branch, and it has no effect on the example."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(-50, 50) if (x.abs() > 50).any() else x


class FarNumber(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum().item() < 1e6 else x * 3


class Same(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.equal(x, x.abs()) else x * 3


class Repeated(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(int(x.abs().sum().item())):
            x = x * 2
        return x


class Chosen(nn.Module):
    """All choices run the same operators."""

    def __init__(self) -> None:
        super().__init__()
        self.choices = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.choices[int(x[0].argmax())](x)
        return found


class Folded(nn.Module):
    """Other sizes fail one at a time, but not both together."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = int(x[0, 0].abs() + 3), int(x[0, 0].abs() + 4)
        if height > width:
            raise ValueError("too high")
        return x.new_ones(12).reshape(height, width) + x.sum()


class Checked(nn.Module):
    """As above, but the code itself says so."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = int(x[0, 0].abs() + 3), int(x[0, 0].abs() + 4)
        if height * width != 12:
            raise ValueError("other sizes")
        return x.new_ones(12).reshape(height, width) + x.sum()


class Smallest(nn.Module):
    """The other branch fails where the example does not need it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x[x > 9].min() if (x > 9).any() else x


class Routed(nn.Module):
    """The size of a tensor decides, which is no read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.isfinite(x).all():
            raise ValueError("not finite")
        large = (x > 0.5).nonzero()
        return x + len(large) if len(large) > 1 else x


class Behind(nn.Module):
    def __init__(self, router: nn.Module) -> None:
        super().__init__()
        self.router = router

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.router(x * 1)
        return found


@pytest.mark.parametrize(
    ("router", "why"),
    [
        (Sign(), "makes it compute something else"),
        (Rare(), "makes it compute something else"),
        (Clamped(), "makes it compute something else"),
        (FarNumber(), "makes it compute something else"),
        (Same(), "makes it compute something else"),
        (Repeated(), "makes it compute something else"),
        (Chosen(), "makes it compute something else"),
        (Folded(), "fails"),
        (Checked(), "fails"),
        (Smallest(), "makes it compute something else"),
        (Routed(), "sizes of its tensors depend on values"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_consent_is_asked_for_where_a_value_matters(router: nn.Module, why: str, tmp_path: Path) -> None:
    x = torch.tensor([[0.1, 0.9, 0.3, 0.2], [0.7, 0.4, 0.6, 0.8]])
    with pytest.raises(modelexport.SpecializationError) as caught:
        modelexport.export_model(Behind(router), x, tmp_path / "m.onnx", check="run", probes=2)
    assert why in str(caught.value)
    assert all("module 'router'" in place for place in caught.value.places)
    assert list(tmp_path.iterdir()) == []


class Escaping(nn.Module):
    """A value that leaves the tensor without an operator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(np.from_dlpack(x.detach()).max())


class GuardedEscape(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = Escaping()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.isnan(x).any():
            raise ValueError("not a number")
        found: torch.Tensor = self.scale(self.linear(x))
        return found


def test_a_file_that_differs_on_a_probe_needs_consent_and_the_error_names_the_module(tmp_path: Path) -> None:
    with pytest.raises(modelexport.SpecializationError, match=r"with probe 1: .*; the error begins in scale\)"):
        modelexport.export_model(GuardedEscape(), torch.randn(2, 4), tmp_path / "m.onnx", check="run")
    assert list(tmp_path.iterdir()) == []


def test_fewer_axes_are_not_tried_where_values_are_the_reason(tmp_path: Path) -> None:
    with pytest.raises(modelexport.SpecializationError) as caught:
        modelexport.export_model(Behind(Sign()), torch.ones(2, 4), tmp_path / "m.onnx", dynamic="auto")
    assert len({attempt.variant.partition("dynamic axes")[2] for attempt in caught.value.attempts}) == 1


def test_fewer_axes_are_tried_where_a_file_without_consent_is_wrong_at_another_size(tmp_path: Path) -> None:
    model, inputs = path_score()
    result = modelexport.export_model(model, inputs, tmp_path / "m.onnx", check="run", dynamic="auto")
    assert "probe 1" in result.check.compared
    assert any(attempt.error and "are not PyTorch's: with batch=" in attempt.error for attempt in result.attempts)


@pytest.mark.parametrize("row", [[7, 5, 4], [2, 3, 9], [1, 1, 0]])
def test_integers_in_order_stay_in_order_in_a_probe(row: list[int]) -> None:
    changes = list(other_values(ModelInputs((torch.tensor(row), torch.tensor([[3, 1, 2, 0, 4, 5]])), {}), 20))
    probes = [change.tries[0].args for change in changes]
    assert all(found.tolist() == sorted(found.tolist(), reverse=row[0] > row[-1]) for found, _ in probes)
    assert len({tuple(found.tolist()) for found, _ in probes}) > 2
    unordered = [found[0].tolist() for _, found in probes]
    assert not all(values in (sorted(values), sorted(values, reverse=True)) for values in unordered)
