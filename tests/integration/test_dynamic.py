"""Axes that may have other sizes: found by running the model, or named; and what comes out runs at other sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.command import PROGRESS_LINE, Outcome
from tests.support.command_process import FACTORIES, in_process
from tests.support.dynamic_files import dimensions, same_at_other_sizes
from tests.support.nine import clip
from torch import nn

import modelexport
from modelexport.capture.dynamic_axes import ExampleCall, check_axes, dynamic_shapes, find_axes
from modelexport.errors import InputError, StrategyIncompatibleError
from modelexport.hierarchy import CheckOutcome

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 40}


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 40, shape, generator=torch.Generator().manual_seed(0))


def bert() -> tuple[nn.Module, dict[str, Any]]:
    transformers = pytest.importorskip("transformers")
    model = transformers.BertModel(transformers.BertConfig(**TINY, max_position_embeddings=32))
    # One text and a mask that masks nothing: neither tells by itself what may change.
    return model, {"input_ids": tokens(1, 7), "attention_mask": torch.ones(1, 7, dtype=torch.int64)}


def gpt2() -> tuple[nn.Module, dict[str, Any]]:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=32, bos_token_id=1, eos_token_id=2
    )
    return transformers.GPT2LMHeadModel(config), {"input_ids": tokens(2, 7)}


def vit() -> tuple[nn.Module, dict[str, Any]]:
    transformers = pytest.importorskip("transformers")
    model = transformers.ViTModel(transformers.ViTConfig(**TINY, image_size=16, patch_size=8))
    return model, {"pixel_values": torch.randn(2, 3, 16, 16)}


def cnn() -> tuple[nn.Module, dict[str, Any]]:
    return Pictures(), {"x": torch.randn(2, 3, 12, 12)}


MODELS: dict[str, tuple[Callable[[], tuple[nn.Module, dict[str, Any]]], dict[str, dict[int, str]]]] = {
    "bert": (bert, {name: {0: "batch", 1: "sequence"} for name in ("input_ids", "attention_mask")}),
    "gpt2": (gpt2, {"input_ids": {0: "batch", 1: "sequence"}}),
    "vit": (vit, {"pixel_values": {0: "batch"}}),
    "cnn": (cnn, {"x": {0: "batch", 2: "x_2", 3: "x_3"}}),
}


def same_but_for_names(found: dict[str, dict[int, str]], wanted: dict[str, dict[int, str]]) -> bool:
    """Whether the same axes are dynamic, and the same of them equal: one exporter names them by itself."""
    places = [(name, axis) for name, axes in wanted.items() for axis in axes]
    if places != [(name, axis) for name, axes in found.items() for axis in axes]:
        return False
    pairs = {(wanted[name][axis], found[name][axis]) for name, axis in places}
    return len(pairs) == len({name for name, _ in pairs}) == len({name for _, name in pairs})


@pytest.mark.parametrize("name", MODELS)
def test_axes_are_found_exported_and_run_at_other_sizes(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, axes = MODELS[name]
    model, inputs = make()
    result = modelexport.export_model(model.eval(), inputs, tmp_path / "model.onnx", dynamic="auto")
    assert same_but_for_names(dimensions(tmp_path / "model.onnx"), axes)
    assert result.dynamic_axes == axes
    assert any(note.startswith("dynamic axes: ") for note in result.notes)
    assert (result.strategy, result.coverage) == ("fx", 1)
    same_at_other_sizes(model, ExampleCall(model, (), inputs), tmp_path / "model.onnx", axes)


def test_axes_named_by_hand_are_the_only_ones(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, inputs = cnn()
    named = {"x": {0: "images", -1: "width"}}
    result = modelexport.export_model(model.eval(), inputs, tmp_path / "model.onnx", dynamic=named)
    axes = {"x": {0: "images", 3: "width"}}
    assert result["dynamic_axes"] == {"x": {"0": "images", "3": "width"}}
    assert dimensions(tmp_path / "model.onnx") == axes
    same_at_other_sizes(model, ExampleCall(model, (), inputs), tmp_path / "model.onnx", axes)


def test_torchscript_gets_the_axes_in_its_own_form(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, inputs = cnn()
    modelexport.export_model(model.eval(), inputs, tmp_path / "model.onnx", dynamic="auto", strategy="htp")
    axes = {"x": {0: "batch", 2: "x_2", 3: "x_3"}}
    assert dimensions(tmp_path / "model.onnx") == axes
    same_at_other_sizes(model, ExampleCall(model, (), inputs), tmp_path / "model.onnx", axes)


@pytest.mark.parametrize("strategy", ["fx", "htp"])
def test_names_that_inputs_are_given_change_no_axis(strategy: str, tmp_path: Path) -> None:
    model, inputs = cnn()
    options: dict[str, Any] = {"dynamic": {"x": {0: "images"}}, "input_names": ["pictures"], "strategy": strategy}
    result = modelexport.export_model(model.eval(), inputs, tmp_path / "model.onnx", **options)
    assert dimensions(tmp_path / "model.onnx") == {"pictures": {0: "images"}}
    assert result.dynamic_axes == {"x": {0: "images"}}


def test_encoder_and_decoder_have_lengths_of_their_own() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=40, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0, use_cache=False
    )
    inputs = {"input_ids": tokens(2, 6), "decoder_input_ids": tokens(2, 6)}
    call = ExampleCall(transformers.T5Model(config).eval(), (), inputs)
    assert find_axes(call) == {
        ("input_ids", 0): "batch",
        ("input_ids", 1): "input_ids_sequence",
        ("decoder_input_ids", 0): "batch",
        ("decoder_input_ids", 1): "decoder_input_ids_sequence",
    }


def test_exporter_of_transformers_keeps_a_length_that_the_model_limits(tmp_path: Path) -> None:
    """The position embeddings of BERT end at 32 tokens: named dimensions would have to fit any length."""
    model, inputs = bert()
    modelexport.export_model(
        model.eval(), inputs, tmp_path / "model.onnx", strategy="fx", exporter="transformers", dynamic="auto"
    )
    assert dimensions(tmp_path / "model.onnx") == MODELS["bert"][1]


class FixedWhenTraced(nn.Module):
    """Runs at any size; torch makes the second axis a constant when it traces it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor(range(int(x.shape[1])), dtype=x.dtype)


def test_axis_that_torch_fixes_is_given_up_and_said(tmp_path: Path) -> None:
    model = FixedWhenTraced()
    inputs = {"x": torch.randn(3, 4)}
    result = modelexport.export_model(model, inputs, tmp_path / "model.onnx", dynamic="auto", strategy="fx")
    assert dimensions(tmp_path / "model.onnx") == {"x": {0: "batch"}}
    given_up, kept = result.notes
    assert given_up.startswith(
        "forward accepts other sizes on these axes, but no exporter gave a right file: x:1 (fx ("
    )
    assert "inferred a static shape of 4 for dimension inputs['x'].shape[1]" in given_up
    assert kept == "dynamic axes: x batch x 4"
    assert [attempt.variant for attempt in result.attempts] == [
        "dynamic axes x:0=batch, x:1=x_1",
        "dynamic axes x:0=batch",
    ]


class Partly(nn.Module):
    """Torch fixes the second axis of its first input, and none of the others."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return FixedWhenTraced()(x), y * 2


def test_axes_that_torch_frees_are_kept_without_those_that_it_fixes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, inputs = Partly(), {"x": torch.randn(3, 4), "y": torch.randn(5, 6)}
    result = modelexport.export_model(model, inputs, tmp_path / "model.onnx", dynamic="auto", strategy="fx")
    axes = {"x": {0: "x_0"}, "y": {0: "y_0", 1: "y_1"}}
    assert result.dynamic_axes == axes == dimensions(tmp_path / "model.onnx")
    same_at_other_sizes(model, ExampleCall(model, (), inputs), tmp_path / "model.onnx", axes)


class UNet(nn.Module):
    """Halves height and width three times and doubles them again, with skips: it takes multiples of eight."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(c, 4, 3, 2, 1) for c in (1, 4, 4))
        self.up = nn.ModuleList(nn.ConvTranspose2d(4, c, 2, 2) for c in (4, 4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = [x]
        for conv in self.down:
            skips.append(torch.relu(conv(skips[-1])))
        result = skips.pop()
        for conv in self.up:
            result = conv(result) + skips.pop()
        return result


@pytest.mark.parametrize("strategy", ["auto", "htp"])
def test_sizes_of_a_network_with_strides_and_skips_are_multiples(strategy: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model, path, axes = UNet().eval(), tmp_path / "model.onnx", {"x": {0: "batch", 2: "8*x_2", 3: "8*x_3"}}
    result = modelexport.export_model(
        model, torch.randn(1, 1, 32, 48), path, dynamic="auto", strategy=strategy, check="run"
    )
    assert result.dynamic_axes == axes == {"x": next(iter(dimensions(path).values()))}
    assert result.check is not None
    assert not result.check.is_wrong
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for shape in ((3, 1, 24, 32), (1, 1, 40, 72)):
        x = torch.randn(shape)
        (got,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        np.testing.assert_allclose(got, model(x).detach().numpy(), atol=1e-5)
    again = modelexport.export_model(
        model, torch.randn(1, 1, 32, 48), tmp_path / "again.onnx", dynamic=result.dynamic_axes, strategy=strategy
    )
    assert again.dynamic_axes == axes


def test_candidates_with_fewer_axes_are_not_tried_when_the_time_is_used_up(tmp_path: Path) -> None:
    inputs = {"x": torch.randn(3, 4)}
    with pytest.raises(StrategyIncompatibleError) as caught:
        modelexport.export_model(
            FixedWhenTraced(), inputs, tmp_path / "model.onnx", dynamic="auto", strategy="fx", timeout=0.01
        )
    assert [(attempt.variant, attempt.tried) for attempt in caught.value.attempts] == [
        ("dynamic axes x:0=batch, x:1=x_1", True),
        ("fewer dynamic axes", False),
    ]


def test_axis_named_by_hand_that_torch_fixes_is_an_error(tmp_path: Path) -> None:
    inputs = {"x": torch.randn(3, 4)}
    named = {"x": {1: "length"}}
    with pytest.raises(StrategyIncompatibleError):
        modelexport.export_model(FixedWhenTraced(), inputs, tmp_path / "model.onnx", dynamic=named, strategy="fx")
    assert list(tmp_path.iterdir()) == []


# --- finding ---------------------------------------------------------------------------------------------------------


class Unrolled(nn.Module):
    """A loop over an axis, which TorchScript unrolls for the size of the example, without a warning."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            state = torch.tanh(self.cell(x[:, step] + state))
        return state


def test_torchscript_file_with_an_axis_that_the_trace_fixed_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    result = modelexport.export_model(
        Unrolled(), torch.randn(2, 5, 4), path, dynamic="auto", strategy="htp", check="run"
    )
    assert dimensions(path) == {"x": {0: "batch"}}
    assert any("x:1=x_1) was not used" in note and "with x_1=" in note for note in result.notes)


class Speech(nn.Module):
    """A recurrent layer that torch.export unrolls for the length of the example, and TorchScript does not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 8, 3, padding=1)
        self.rnn = nn.RNN(8, 6, bidirectional=True, batch_first=True)
        self.head = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.conv(x).transpose(1, 2))[0]).log_softmax(-1)


@pytest.mark.parametrize("dynamic", ["auto", {"x": {0: "batch", 2: "x_2"}}])
def test_torchscript_keeps_an_axis_that_torch_export_fixes(dynamic: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, path, axes = Speech().eval(), tmp_path / "model.onnx", {"x": {0: "batch", 2: "x_2"}}
    result = modelexport.export_model(model, torch.randn(2, 4, 17), path, dynamic=dynamic, check="run")
    assert (result.strategy, result.dynamic_axes) == ("htp", axes)
    assert dimensions(path) == axes
    same_at_other_sizes(model, ExampleCall(model, (torch.randn(2, 4, 17),), {}), path, axes)


class Strided(Speech):
    """Torch leaves two lengths to a loop over an axis that it unrolled: those that round to the same number."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 8, 3, stride=2, padding=1)


def test_axis_with_two_sizes_left_is_exported_by_torchscript(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, path = Strided().eval(), tmp_path / "model.onnx"
    result = modelexport.export_model(model, torch.randn(2, 4, 9), path, dynamic="auto")
    assert (result.strategy, result.dynamic_axes) == ("htp", {"x": {0: "batch", 2: "x_2"}})
    assert "torch allows hardly another size: x_2 = 9…10, test_dynamic.py:" in str(result.attempts[0].error)


def test_axis_named_by_hand_that_the_torchscript_trace_fixed_is_wrong(tmp_path: Path) -> None:
    path, axes = tmp_path / "model.onnx", {"x": {1: "n"}}
    result = modelexport.export_model(Unrolled(), torch.randn(2, 5, 4), path, dynamic=axes, strategy="htp", check="run")
    assert result.check is not None
    assert result.check.is_wrong
    assert "with n=11" in result.check.reason
    assert not result["summary"]["success"]


def test_axes_that_must_be_equal_change_together_and_others_by_themselves() -> None:
    class Joined(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return a + b, c * 2

    call = ExampleCall(Joined(), (torch.randn(3, 5), torch.randn(3, 5)), {"c": torch.randn(3, 5)})
    assert find_axes(call) == {
        ("a", 0): "batch",
        ("a", 1): "a_1",
        ("b", 0): "batch",
        ("b", 1): "a_1",
        ("c", 0): "c_0",
        ("c", 1): "c_1",
    }


def test_tensors_inside_of_arguments_have_axes_too() -> None:
    class Nested(nn.Module):
        def forward(self, pair: dict[str, torch.Tensor]) -> torch.Tensor:
            return pair["a"] @ pair["b"]

    call = ExampleCall(Nested(), ({"a": torch.randn(2, 3), "b": torch.randn(3, 4)},), {})
    found = find_axes(call)
    assert {axis: found[axis] for axis in (("pair.a", 1), ("pair.b", 0))} == dict.fromkeys(
        (("pair.a", 1), ("pair.b", 0)), "pair_a_1"
    )
    assert dynamic_shapes(call, {("pair.a", 0): "rows"}) == {"pair": {"a": {0: "rows"}, "b": None}}


def test_model_is_left_as_it_was_and_one_that_fails_has_no_axes() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert find_axes(ExampleCall(model, (torch.randn(3, 4),), {})) == {("input", 0): "batch"}
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert find_axes(ExampleCall(model, (torch.randn(3, 5),), {})) == {}


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"y": {0: "batch"}}, "y:0=batch: there is no input 'y'; the inputs are x"),
        ({"x": {4: "batch"}}, "x:4=batch: x has the axes 0 to 3"),
        ({"x": {0: "a", -4: "b"}}, "axis -4 of x is named twice"),
        ({"x": {0: "1st"}}, "'1st' is not a valid dimension name"),
        ({"x": {"0": "batch"}}, "does not name axes: pass 'auto', or"),
        ({"x": ["batch"]}, "does not name axes"),
        ({0: "batch"}, "does not name axes"),
        ("all", "does not name axes"),
    ],
)
def test_axis_that_is_not_there_is_refused(axes: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        check_axes(axes, ExampleCall(Pictures(), (torch.randn(2, 3, 12, 12),), {}))
    with pytest.raises(InputError, match=said):
        modelexport.export_model(Pictures(), torch.randn(2, 3, 12, 12), tmp_path / "model.onnx", dynamic=axes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["dynamic_shapes", "dynamic_axes"])
def test_axes_said_twice_are_refused(option: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"dynamic": "auto", option: {"x": {0: "batch"}}}
    with pytest.raises(InputError, match=f"dynamic and {option} both declare dynamic axes"):
        modelexport.export_model(Pictures(), torch.randn(2, 3, 12, 12), tmp_path / "model.onnx", **options)


# --- the command line ------------------------------------------------------------------------------------------------


def test_command_finds_axes_and_says_them(command: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = command("export", "tests.support.factories:net", tmp_path / "net.onnx", "--dynamic", "auto")
    assert outcome.code == 0, outcome.stderr
    assert "dynamic axes: x batch x 3 x x_2 x x_3" in outcome.stderr.splitlines()
    assert dimensions(tmp_path / "net.onnx") == {"x": {0: "batch", 2: "x_2", 3: "x_3"}}


def test_trials_of_other_sizes_print_nothing(tmp_path: Path) -> None:
    # A process of its own: torch's log goes to the stderr that there was when torch was imported.
    outcome = in_process("export", f"{FACTORIES}:branches", tmp_path / "net.onnx", "--dynamic", "auto")
    assert outcome.code == 0, outcome.stderr
    *printed, fixed, found = outcome.stderr.splitlines()
    assert (fixed.rpartition(": ")[2], found) == ("x:1", "dynamic axes: x batch x 4")
    assert all(PROGRESS_LINE.fullmatch(line) for line in printed)


def check_clip(model: nn.Module, path: Path) -> None:
    """Texts and images have axes of their own, and the file gives PyTorch's result for other numbers of both."""
    onnxruntime = pytest.importorskip("onnxruntime")
    found = dimensions(path)
    assert found["attention_mask"] == found["input_ids"]
    assert list(found["pixel_values"]) == [0]
    assert found["pixel_values"][0] not in found["input_ids"].values()
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    other = clip_inputs(1, 3)
    with torch.no_grad():
        wanted = model.eval()(**other).logits_per_image
    got = session.run(None, {name: tensor.numpy() for name, tensor in other.items()})
    assert any(array.shape == wanted.shape and np.allclose(array, wanted.numpy(), atol=1e-4) for array in got)


def clip_inputs(texts: int, images: int) -> dict[str, torch.Tensor]:
    """In the order of its processor, in which forward does not take them."""
    ids = tokens(texts, 7)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": torch.randn(images, 3, 30, 30)}


def test_command_gives_texts_and_images_their_own_axes(command: Callable[..., Outcome], tmp_path: Path) -> None:
    model, _ = clip()
    model.save_pretrained(tmp_path / "clip")
    np.savez(tmp_path / "inputs.npz", **{name: tensor.numpy() for name, tensor in clip_inputs(2, 1).items()})
    given = ("--inputs", tmp_path / "inputs.npz", "--dynamic", "auto")
    outcome = command("export", tmp_path / "clip", tmp_path / "clip.onnx", *given)
    assert outcome.code == 0, outcome.stderr
    check_clip(model, tmp_path / "clip.onnx")


def test_exporter_of_transformers_gives_texts_and_images_their_own_axes(tmp_path: Path) -> None:
    model, _ = clip()
    axes = {"input_ids": {0: "texts"}, "attention_mask": {0: "texts"}, "pixel_values": {0: "images"}}
    options: dict[str, Any] = {"strategy": "fx", "exporter": "transformers", "dynamic": axes}
    modelexport.export_model(model, clip_inputs(2, 3), tmp_path / "clip.onnx", **options)
    check_clip(model, tmp_path / "clip.onnx")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("auto", "x:0=batch"), "--dynamic auto determines the axes: give no others"),
        (("x=batch",), "--dynamic 'x=batch' cannot be read: write auto, or name:axis=dimension"),
        (("x:0=1st",), "--dynamic 'x:0=1st' cannot be read"),
        (("x:7=batch",), "x has the axes 0 to 3"),
        (("y:0=batch",), "there is no input 'y'"),
        (("x:0=a", "x:0=b"), "--dynamic 'x:0=b': axis 0 of x is given twice"),
    ],
)
def test_command_refuses_text_that_is_not_an_axis(
    command: Callable[..., Outcome], tmp_path: Path, given: tuple[str, ...], said: str
) -> None:
    options = itertools.chain.from_iterable(("--dynamic", text) for text in given)
    outcome = command("export", "tests.support.factories:net_with_inputs", tmp_path / "net.onnx", *options)
    assert outcome.code == 2
    assert said in outcome.error
    assert list(tmp_path.iterdir()) == []


class Windowed(nn.Module):
    """Short inputs are treated in another way than long ones: the exporter takes the way of the example."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        return y - y.mean(1, keepdim=True) if x.size(1) > 11 else y.tanh()


class Countable(nn.Module):
    """Computes something else for inputs that are longer than any memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sigmoid() if x.size(1) <= 5 * 10**6 else x.tanh()


def test_limit_that_no_input_reaches_is_said_and_not_tried(tmp_path: Path) -> None:
    axes = {"x": {1: "time"}}
    result = modelexport.export_model(
        Countable(), torch.randn(1, 8, 2**16), tmp_path / "model.onnx", dynamic=axes, check="run"
    )
    assert result.document.size_ranges["time"].max == 5 * 10**6
    assert result.check.outcome is CheckOutcome.EQUAL
    assert result.check.outside == ()


def test_sizes_for_which_torch_knows_the_file_to_be_valid_are_said_and_checked(
    tmp_path: Path, command: Callable[..., Outcome]
) -> None:
    torch.manual_seed(0)
    path, axes = tmp_path / "model.onnx", {"x": {0: "batch", 1: "time"}}
    result = modelexport.export_model(Windowed(), torch.randn(2, 7, 3), path, dynamic=axes, strategy="fx", check="run")
    assert result.check.outcome is CheckOutcome.EQUAL
    limits = result.document.size_ranges["time"]
    assert (limits.min, limits.max, limits.place.partition(":")[0]) == (None, 11, "test_dynamic.py")
    assert {"time=11", "time=6", "batch=5, time=8"} <= set(result.check.compared)
    assert f"with time=12, outside of {limits}, it is different" in result.check.outside
    assert f"the file is valid for these sizes only: time = {limits}" in result.notes
    assert str(limits) in command("tree", path).stdout
    assert modelexport.load(path).document.size_ranges == {"time": limits}
    hidden = modelexport.export_model(
        Windowed(), torch.randn(2, 7, 3), tmp_path / "p.onnx", dynamic=axes, strategy="fx", private=True
    )
    assert hidden.document.size_ranges["time"].place == ""


def test_a_file_that_is_wrong_at_another_size_is_not_called_right(tmp_path: Path) -> None:
    """Nobody knows a range of what TorchScript's trace fixed."""
    torch.manual_seed(0)
    path, axes = tmp_path / "model.onnx", {"x": {1: "time"}}
    result = modelexport.export_model(Windowed(), torch.randn(2, 7, 3), path, dynamic=axes, strategy="htp", check="run")
    assert result.check.is_wrong
    assert "with time=15" in result.check.reason


def test_a_file_with_dynamic_shapes_of_torch_is_run_at_other_sizes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    shapes = {"x": {0: "batch", 2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}}
    result = modelexport.export_model(
        Pictures(), torch.randn(2, 3, 12, 12), tmp_path / "m.onnx", dynamic_shapes=shapes, check="run"
    )
    assert result.check.outcome is CheckOutcome.EQUAL
    assert len(result.check.compared) == 7
    assert {"batch=5", "batch=1"} < set(result.check.compared)
    assert result.check.not_compared == ()
    assert modelexport.load(result.onnx_path).document.check == result.check


def test_a_size_that_pytorch_refuses_says_nothing_and_is_named(tmp_path: Path) -> None:
    class Halves(nn.Module):
        """Takes even sizes only, and at least 6."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.avg_pool1d(x.unflatten(1, (2, -1)), 3).flatten(1)

    shapes = {"x": {1: torch.export.Dim("half", min=3) * 2}}
    result = modelexport.export_model(
        Halves(), torch.randn(2, 8), tmp_path / "m.onnx", dynamic_shapes=shapes, check="run"
    )
    assert result.check.outcome is CheckOutcome.EQUAL
    assert result.check.compared == ("half=9", "half=3")


def test_only_the_axis_that_a_trace_fixed_is_given_up(tmp_path: Path) -> None:
    class Summed(nn.Module):
        """Adds the steps up in Python; torch.export has no memory to look at."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.data_ptr() == 0:
                raise ValueError("empty")
            return sum((x[:, step].tanh() for step in range(x.shape[1])), torch.zeros(()))

    path = tmp_path / "model.onnx"
    result = modelexport.export_model(Summed(), torch.randn(2, 5, 4), path, dynamic="auto", check="run")
    assert result.check.outcome is CheckOutcome.EQUAL
    assert dimensions(path) == {"x": {0: "batch", 2: "x_2"}}
    assert any("no exporter gave a right file: x:1" in note for note in result.notes)


def test_axes_that_are_fixed_are_said(tmp_path: Path) -> None:
    class Frames(nn.Module):
        """Takes four samples for each frame: neither axis can change alone."""

        def forward(self, audio: torch.Tensor, frames: torch.Tensor) -> torch.Tensor:
            return audio + frames.repeat_interleave(4, 1)

    result = modelexport.export_model(
        Frames(), (torch.randn(2, 20), torch.randn(2, 5)), tmp_path / "m.onnx", dynamic="auto", check="run"
    )
    assert dimensions(result.onnx_path) == {"audio": {0: "batch"}, "frames": {0: "batch"}}
    assert "fixed, because forward takes no other size of these axes alone: audio:1, frames:1" in result.notes
