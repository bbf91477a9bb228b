"""Synthesized inputs are accepted by forward and the same each time, and the model is left as it was."""

from __future__ import annotations

import itertools
import random
import re
import time
from typing import Any

import pytest
import torch
from torch import nn

import modelexport
from modelexport.errors import InputError
from modelexport.sources.inputs.synthesis import make_example_inputs, synthesize_inputs
from modelexport.sources.inputs.synthesis.search import max_calls


class Pictures(nn.Module):
    """A CNN that takes pictures of one size only, which nothing but its last layer tells."""

    def __init__(self, channels: int, side: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 8, 3)
        self.head = nn.Linear(8 * ((side // 2 - 2) // 2) ** 2, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.second):
            x = nn.functional.max_pool2d(layer(x), 2)
        return self.head(x.flatten(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(12, 8, batch_first=True)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        return self.cells(series)[0][:, -1]


class Towers(nn.Module):
    """Two tensors by keyword, of different widths and types, that no name and no annotation tells apart."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Linear(11, 8)
        self.items = nn.Embedding(50, 8)

    def forward(self, *, user: torch.Tensor, item: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.users(user) * self.items(item).mean(1) * scale


class OnlyPositional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, /) -> torch.Tensor:
        return self.layer(x)


class Rest(OnlyPositional):
    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.layer(tensors[0])


class AskedFor(nn.Module):
    """Wants what its signature does not require, and says so."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)

    def forward(self, query: torch.Tensor, context: torch.Tensor | None = None, fast: bool = False) -> torch.Tensor:
        if context is None:
            raise ValueError("context has to be given")
        return self.table(query) + self.table(context)


def called(model: nn.Module) -> Any:
    inputs = make_example_inputs(model)
    with torch.no_grad():
        return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


@pytest.mark.parametrize(
    "model",
    [
        nn.Identity(),
        nn.Linear(5, 3),
        nn.Embedding(10, 3),
        nn.EmbeddingBag(10, 3),
        nn.Conv1d(4, 2, 3),
        nn.Conv3d(2, 2, 3),
        nn.ConvTranspose2d(5, 3, 2),
        nn.GRU(5, 6),
        nn.GRUCell(3, 4),
        nn.Bilinear(3, 4, 5),
        nn.TransformerEncoderLayer(16, 2, 32),
        nn.MultiheadAttention(8, 2),
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
        nn.Sequential(nn.Conv1d(4, 8, 3), nn.Flatten(), nn.Linear(8 * 98, 3)),
        Pictures(1, 28),
        Pictures(3, 32),
        Pictures(3, 100),
        Recurrent(),
        Towers(),
        OnlyPositional(),
        Rest(),
        AskedFor(),
    ],
    ids=lambda model: type(model).__name__,
)
def test_forward_accepts_synthesized_inputs(model: nn.Module) -> None:
    assert called(model.eval()) is not None


def test_argument_without_a_default_is_keyword_and_one_that_cannot_be_is_positional() -> None:
    assert sorted(make_example_inputs(Towers())) == ["item", "user"]
    assert [tuple(x.shape) for x in make_example_inputs(OnlyPositional())] == [(2, 3)]


def test_argument_that_the_error_names_is_added_and_options_are_left_alone() -> None:
    assert sorted(make_example_inputs(AskedFor())) == ["context", "query"]


def test_size_that_only_the_last_layer_shows_is_found() -> None:
    shape = make_example_inputs(Pictures(3, 100))["x"].shape  # type: ignore[call-overload]
    # Pooling rounds down: a few sizes give the same number of features.
    assert shape[1] == 3
    assert 100 <= shape[2] == shape[3] <= 103


def test_same_model_gets_the_same_inputs_whatever_the_random_state() -> None:
    first = make_example_inputs(Towers())
    torch.manual_seed(99)
    second = make_example_inputs(Towers())
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_inputs_have_the_type_of_the_weights() -> None:
    inputs = make_example_inputs(nn.Linear(4, 2).double())
    assert isinstance(inputs, dict)
    assert inputs["input"].dtype is torch.float64


def test_model_and_torch_are_left_as_they_were() -> None:
    model = nn.Sequential(nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8), nn.Dropout(), nn.Flatten(), nn.Linear(8 * 98, 3))
    model[1].eval()
    flags = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state, python_state = torch.random.get_rng_state(), random.getstate()
    make_example_inputs(model)
    assert [module.training for module in model.modules()] == flags
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert random.getstate() == python_state
    assert torch.is_grad_enabled()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_rules_on_the_path_to_the_inputs_are_recorded() -> None:
    found = synthesize_inputs(Towers())
    assert found.rules == ("signature", "change_kind_for_module")
    assert found.guesses == {"user": "first_module", "item": "first_module"}
    assert found.calls == 2


def test_rule_that_is_left_out_finds_nothing() -> None:
    with pytest.raises(InputError):
        synthesize_inputs(Towers(), without=["change_kind_for_module"])


def test_budget_is_counted_in_calls_and_not_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = itertools.count(0, 3600)
    for clock in ("process_time", "thread_time", "monotonic", "perf_counter", "time"):
        monkeypatch.setattr(time, clock, lambda: next(hours))
    assert synthesize_inputs(Pictures(3, 32)).calls > 1


def test_large_model_is_called_less_often() -> None:
    sizes = [nn.Linear(width, width, device="meta") for width in (10, 20_000, 100_000)]
    assert [max_calls(model) for model in sizes] == [160, 49, 24]


class Secretive(nn.Module):
    """Wants what its signature does not require, and does not say what."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, extra: torch.Tensor | None = None, fast: bool = False) -> torch.Tensor:
        if extra is None:
            raise ValueError("something is missing")
        return self.layer(x) + extra


def test_argument_that_nothing_refers_to_is_added_last() -> None:
    assert sorted(make_example_inputs(Secretive())) == ["extra", "x"]


class Trajectories(nn.Module):
    """Takes several tensors that its signature does not require, of which only the layers they go to tell anything."""

    def __init__(self) -> None:
        super().__init__()
        self.times = nn.Embedding(20, 8)
        self.layers = nn.ModuleDict({name: nn.Linear(size, 8) for name, size in (("a", 3), ("b", 5), ("c", 2))})

    def forward(
        self,
        a: torch.Tensor | None = None,
        b: torch.Tensor | None = None,
        c: torch.Tensor | None = None,
        when: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return self.layers["a"](a) + self.layers["b"](b) + self.layers["c"](c) + self.times(when)


def test_missing_input_of_a_module_gets_the_size_of_its_weights() -> None:
    inputs = make_example_inputs(Trajectories())
    assert isinstance(inputs, dict)
    assert {name: tensor.shape[-1] for name, tensor in inputs.items() if name != "when"} == {"a": 3, "b": 5, "c": 2}
    assert inputs["when"].dtype is torch.int64


class Positions(nn.Module):
    """Has one position more than it takes, and as many of them only."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(1, 12, 5))
        self.layer = nn.Linear(5, 5)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        states = self.layer(states)
        return torch.cat([states[:, :1], states], dim=1) + self.places


class Clips(nn.Module):
    """Its first layers do not tell how many axes it takes; the code that takes them apart does."""

    def __init__(self) -> None:
        super().__init__()
        self.text = nn.Linear(6, 4)
        self.conv = nn.Conv3d(4, 2, 2)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        batch, _, frames, _, _ = hidden_states.shape
        return self.conv(hidden_states).reshape(batch, frames - 1, -1)


def test_rank_is_taken_from_the_code_that_unpacks_the_shape() -> None:
    assert make_example_inputs(Clips())["hidden_states"].shape == (2, 4, 5, 16, 16)  # type: ignore[call-overload]


def test_length_is_found_that_the_model_has_positions_for() -> None:
    assert make_example_inputs(Positions())["states"].shape == (2, 11, 5)  # type: ignore[call-overload]


class Refusing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("only on Tuesdays")


def test_error_says_what_was_tried_what_forward_answered_and_what_to_give() -> None:
    with pytest.raises(InputError) as caught:
        make_example_inputs(Refusing())
    message = str(caught.value)
    assert "Refusing" in message
    assert "x 2x7x16 floats: RuntimeError: only on Tuesdays" in message
    assert "--input-shape" in message
    assert "--inputs" in message
    assert len(message.splitlines()) == 1
    # The same answer again and again is not waited for to the end.
    assert int(re.search(r"(\d+) calls tried", message)[1]) < 60  # type: ignore[index]


class Silent(nn.Module):
    def forward(self, x: torch.Tensor) -> None:
        return None


def test_forward_that_returns_no_tensor_fails() -> None:
    with pytest.raises(InputError, match="without a tensor"):
        make_example_inputs(Silent())


def test_public_name_is_make_example_inputs() -> None:
    assert modelexport.make_example_inputs is make_example_inputs


# --- transformers --------------------------------------------------------------------------------------------------

TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 40,
    "image_size": 16,
    "patch_size": 8,
}
SEQUENCE_TO_SEQUENCE = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "vocab_size": 40,
    "pad_token_id": 0,
}
CASES: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "text": ("Bert", TINY, {"input_ids"}),
    "image": ("ViT", TINY, {"pixel_values"}),
    "decoder": ("GPT2", {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 40}, {"input_ids"}),
    "encoder and decoder": (
        "Bart",
        {**SEQUENCE_TO_SEQUENCE, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2},
        {"input_ids"},
    ),
    "speech": (
        "Whisper",
        {
            **SEQUENCE_TO_SEQUENCE,
            "num_mel_bins": 8,
            "max_source_positions": 20,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        {"input_features", "decoder_input_ids"},
    ),
    "image and text": ("CLIP", {"text_config": TINY, "vision_config": TINY}, {"input_ids", "pixel_values"}),
    "lists of patches": (
        "Qwen2_5_VLVision",
        {
            "hidden_size": 16,
            "depth": 1,
            "num_heads": 2,
            "intermediate_size": 16,
            "patch_size": 4,
            "out_hidden_size": 16,
        },
        {"hidden_states", "grid_thw"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_transformers_models_accept_synthesized_inputs(case: str) -> None:
    transformers = pytest.importorskip("transformers")
    name, settings, wanted = CASES[case]
    if name == "Qwen2_5_VLVision":
        from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as models

        config = models.Qwen2_5_VLVisionConfig(**settings)
        model = models.Qwen2_5_VisionTransformerPretrainedModel(config)
    else:
        model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**settings))
    inputs = make_example_inputs(model.eval())
    assert wanted <= set(inputs)
    with torch.no_grad():
        model(**inputs)
