"""Values that depend on no input are known while torch traces, and only those."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

import modelexport
from modelexport.capture.fx.constant_values import ConstantValues

pytestmark = pytest.mark.filterwarnings("ignore")
_VARIANTS = ["", "with the values of constants"]


class PaddedByBuffer(nn.Module):
    """Pads by a number that it computes from a buffer, as audio codecs do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("stride", torch.tensor(3))
        self.lin = nn.Linear(9, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        missing = torch.ceil(x.shape[-1] / self.stride) * self.stride - x.shape[-1]
        padded = nn.functional.pad(x, (0, missing.long()))
        return self.lin(padded.relu()) if padded.shape[-1] > 8 else padded


class PaddedByNumber(PaddedByBuffer):
    """The same with a number in Python."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(nn.functional.pad(x, (0, 2)).relu())


def test_size_computed_from_a_buffer_is_exported_as_the_number_would_be(tmp_path: Path) -> None:
    model, x = PaddedByBuffer().eval(), torch.ones(2, 7)
    result = modelexport.export_model(model, x, tmp_path / "m.onnx", strategy="fx", check="run")
    assert [attempt.variant for attempt in result.attempts] == _VARIANTS
    assert result.check.outcome == "equal"
    (note,) = (note for note in result.notes if note.startswith("values that depend on no input were computed"))
    assert "nn.functional.pad(x, (0, missing.long()))" in note
    assert {node.module for node in result.document.nodes if node.op == "Gemm"} == {"lin"}
    same = PaddedByNumber().eval()
    same.load_state_dict(model.state_dict())
    torch.onnx.export(same, (x,), tmp_path / "plain.onnx", dynamo=True, verbose=False)
    ours, plain = (onnx.load(tmp_path / name).graph for name in ("m.onnx", "plain.onnx"))
    assert [node.op_type for node in ours.node] == [node.op_type for node in plain.node]


def test_file_with_the_values_of_constants_has_the_bytes_of_torch_with_them(tmp_path: Path) -> None:
    model, x = PaddedByBuffer().eval(), torch.ones(2, 7)
    result = modelexport.export_model(model, x, tmp_path / "m.onnx", strategy="fx")
    with ConstantValues(model).known():
        torch.onnx.export(model, (x,), tmp_path / "plain.onnx", dynamo=True, verbose=False)
    stripped = modelexport.strip_hierarchy(onnx.load(result.onnx_path))
    assert stripped.SerializeToString() == (tmp_path / "plain.onnx").read_bytes()


class ByMask(nn.Module):
    """Depends on a mask that it creates, and into which it may write its input."""

    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.writes = writes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(x.shape[0], 4, dtype=torch.bool)
        mask[:, 3:] = False
        if self.writes:
            mask[:, :1] = x[:, :1] > 0
        rows = mask[0].nonzero()[:, 0]
        return x[:, rows] if mask[0, 0] else x


def test_values_of_a_mask_that_forward_creates_are_known(tmp_path: Path) -> None:
    result = modelexport.export_model(ByMask(writes=False), torch.ones(2, 4), tmp_path / "m.onnx", check="run")
    assert [attempt.variant for attempt in result.attempts] == _VARIANTS
    assert result.check.outcome == "equal"


def test_values_of_a_mask_into_which_an_input_is_written_are_not_known(tmp_path: Path) -> None:
    with pytest.raises(modelexport.SpecializationError) as caught:
        modelexport.export_model(ByMask(writes=True), torch.ones(2, 4), tmp_path / "m.onnx")
    assert [attempt.variant for attempt in caught.value.attempts if attempt.strategy == "fx"] == _VARIANTS


class AfterDropout(nn.Module):
    """Reads a value that a dropout computed."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if nn.functional.dropout(self.table, self.p, training=True).sum() > 0 else x


def test_values_after_a_dropout_are_known_only_if_it_uses_no_random_numbers(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    result = modelexport.export_model(AfterDropout(0.0), torch.ones(2), tmp_path / "m.onnx", strategy="fx", check="run")
    assert [attempt.variant for attempt in result.attempts] == _VARIANTS
    assert result.check.outcome == "equal"
    with pytest.raises(modelexport.StrategyIncompatibleError):
        modelexport.export_model(AfterDropout(0.5), torch.ones(2), tmp_path / "n.onnx", strategy="fx")
    assert torch.equal(torch.get_rng_state(), state)


class Counter(nn.Module):
    """Writes into a buffer whose value it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x * 2 if self.count > 1 else x


def test_value_that_forward_writes_into_a_buffer_is_known_and_the_buffer_restored(tmp_path: Path) -> None:
    model = Counter()
    result = modelexport.export_model(model, torch.ones(2), tmp_path / "m.onnx", strategy="fx", check="run")
    assert [attempt.variant for attempt in result.attempts] == _VARIANTS
    assert result.check.outcome == "equal"
    assert model.count == 1


class Writer(nn.Module):
    """Writes through `.data` into a tensor that it creates: neither exporter sees that."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.zeros(1, 4)
        table.data[:, 2:].copy_(torch.arange(2.0))
        return x + table


class Sum(nn.Module):
    """Writes an input into a tensor that was a constant before."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(2, 4)
        total.data[:, 2:].copy_(torch.arange(4.0).reshape(2, 2))
        total.add_(x)
        return total * torch.arange(4.0)


class Rotated(nn.Module):
    """Splits complex numbers, which torch's exporter has no translation for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.polar(torch.ones(4), torch.arange(4.0))
        left, right = angles.split([1, 3])
        return torch.view_as_real(torch.view_as_complex(x) * torch.cat([right, left]))


@pytest.mark.parametrize(
    ("model", "inputs"),
    [(Writer(), torch.ones(2, 4)), (Sum(), torch.ones(2, 4)), (Rotated(), torch.ones(4, 2))],
)
def test_what_cannot_be_exported_and_depends_on_no_input_is_a_constant(
    model: nn.Module, inputs: torch.Tensor, tmp_path: Path
) -> None:
    result = modelexport.export_model(model, inputs, tmp_path / "m.onnx", strategy="fx", check="run")
    assert result.attempts[-1].name == "fx (dynamo, with constants computed)"
    assert result.check.outcome == "equal"
    assert [note for note in result.notes if note.endswith("and are constants of the graph")]
    with ConstantValues(model, folded=True).known():
        torch.onnx.export(model, (inputs,), tmp_path / "plain.onnx", dynamo=True, verbose=False)
    stripped = modelexport.strip_hierarchy(onnx.load(result.onnx_path))
    assert stripped.SerializeToString() == (tmp_path / "plain.onnx").read_bytes()


class ByValuesOfInputs(nn.Module):
    """Reads a value that depends on its input and its weights; TorchScript cannot translate `rfft`."""

    def __init__(self, *, least: float = 0.0, is_translated: bool = False) -> None:
        super().__init__()
        self.least = least
        self.is_translated = is_translated
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        rows = (x[:, 0] >= self.least).nonzero()[:, 0]
        chosen = self.lin(x[rows] * scale)
        if self.lin(x).abs().sum() > 0 and chosen.shape[0] < 3:
            chosen = chosen * 2
        chosen = chosen[:, : int(x[0, 1])]
        return chosen if self.is_translated else torch.view_as_real(torch.fft.rfft(chosen))


def _inputs() -> dict[str, torch.Tensor]:
    x = torch.arange(12.0).reshape(3, 4) + 2
    # Not in the order of the signature.
    return {"scale": torch.tensor(0.5), "x": x}


class Lengths(nn.Module):
    """Counts different lengths in Python, as models for images of several sizes do."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x * 2 if len(set(mask.sum(1).tolist())) == 1 else x


def test_value_that_is_hashed_counts_as_code_that_depends_on_values(tmp_path: Path) -> None:
    inputs, path = (torch.ones(2, 3), torch.ones(2, 3, dtype=torch.int64)), tmp_path / "m.onnx"
    with pytest.raises(modelexport.DataDependentError, match=r"set\(mask\.sum\(1\)"):
        modelexport.export_model(Lengths(), inputs, path, strategy="fx")
    result = modelexport.export_model(Lengths(), inputs, path, strategy="fx", allow_specialization=True, check="run")
    assert result.attempts[-1].variant == "with the values of the inputs"
    assert result.check.outcome == "equal"


def test_auto_asks_for_consent_where_only_the_values_of_the_inputs_help(tmp_path: Path) -> None:
    with pytest.raises(modelexport.SpecializationError, match=r"if self\.lin\(x\)") as caught:
        modelexport.export_model(ByValuesOfInputs(), _inputs(), tmp_path / "m.onnx")
    (refused,) = (attempt for attempt in caught.value.attempts if attempt.variant == "with the values of the inputs")
    assert "values that depend on the inputs become constants" in str(refused.error)
    result = modelexport.export_model(
        ByValuesOfInputs(), _inputs(), tmp_path / "m.onnx", allow_specialization=True, check="run"
    )
    assert result.attempts[-1].name == "fx (dynamo, with the values of the inputs)"
    assert result.check.outcome == "equal"


@pytest.mark.parametrize("least", [0.0, 5.0, 100.0], ids=["three rows", "two rows", "no row"])
def test_with_the_values_of_the_inputs_operators_stay_in_the_graph(least: float, tmp_path: Path) -> None:
    model, inputs = ByValuesOfInputs(least=least, is_translated=True), _inputs()
    options = {"strategy": "fx", "allow_specialization": True, "check": "run"}
    result = modelexport.export_model(model, inputs, tmp_path / "m.onnx", **options)
    assert result.attempts[-1].name == "fx (dynamo, with the values of the inputs)"
    assert result.check.outcome == "equal"
    assert any(note.startswith("code that reads values has those of the example inputs at") for note in result.notes)
    nodes = {node.op: node.module for node in result.document.nodes}
    assert nodes["Gemm"] == "lin"
    # torch does not take note that a size is zero: an empty tensor becomes a constant.
    assert ("NonZero" in nodes) is (least < 100)
    with ConstantValues(model, of_inputs=True).known():
        torch.onnx.export(model, (), tmp_path / "plain.onnx", kwargs=inputs, dynamo=True, verbose=False)
    stripped = modelexport.strip_hierarchy(onnx.load(result.onnx_path))
    assert stripped.SerializeToString() == (tmp_path / "plain.onnx").read_bytes()
