"""Text, images and sound through the model's own processor, and what it cannot be given."""

from __future__ import annotations

import inspect
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import soundfile
import torch
from tests.support.command import Outcome
from tests.support.tiny_models import VOCABULARY, make_bert, make_tokenizer, save_bert

from modelexport.errors import InputError
from modelexport.sources.inputs.from_processor import RawInputs, process, read_raw_inputs
from modelexport.sources.inputs.synthesis import complete_inputs, make_example_inputs

transformers = pytest.importorskip("transformers")
TAKEN = dict.fromkeys(["input_ids", "attention_mask", "token_type_ids", "pixel_values", "input_values"])


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture(scope="module")
def bert() -> Any:
    return make_bert()


@pytest.fixture(scope="module")
def extractor() -> Any:
    return transformers.Wav2Vec2FeatureExtractor(feature_size=1, sampling_rate=4000, do_normalize=False)


def write_wave(path: Path, numbers: np.ndarray[Any, Any], rate: int, channels: int = 1) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(numbers.dtype.itemsize)
        file.setframerate(rate)
        file.writeframes(numbers.tobytes())
    return path


# --- text ----------------------------------------------------------------------------------------------------------


def test_texts_become_one_padded_batch(tokenizer: Any) -> None:
    made = process(tokenizer, RawInputs(("the cat sat", "the cat")), TAKEN)
    assert made["input_ids"].tolist() == [[2, 5, 6, 7, 3], [2, 5, 6, 3, 0]]
    assert made["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]


def test_what_forward_does_not_take_is_left_out(tokenizer: Any) -> None:
    assert set(process(tokenizer, RawInputs(("the cat",)), {"input_ids": None})) == {"input_ids"}
    with pytest.raises(InputError, match="forward accepts x"):
        process(tokenizer, RawInputs(("the cat",)), {"x": None})


def test_inputs_are_synthesized_from_the_output_of_the_processor(tokenizer: Any, bert: Any) -> None:
    inputs = make_example_inputs(bert, tokenizer)
    assert isinstance(inputs, dict)
    assert set(inputs) == {"input_ids", "attention_mask", "token_type_ids"}
    assert inputs["input_ids"][0, 0] == VOCABULARY.index("[CLS]")


def test_processor_whose_inputs_forward_refuses_is_passed_over(tokenizer: Any) -> None:
    inputs = make_example_inputs(torch.nn.Linear(3, 2), tokenizer)
    assert isinstance(inputs, dict)
    assert inputs["input"].shape == (2, 3)


def test_other_arguments_of_forward_are_synthesized(tokenizer: Any) -> None:
    config = transformers.T5Config(
        vocab_size=len(VOCABULARY), d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    model = transformers.T5Model(config).eval()
    given = process(tokenizer, RawInputs(("the cat sat",)), inspect.signature(model.forward).parameters)
    inputs = complete_inputs(model, given)
    assert isinstance(inputs, dict)
    assert set(inputs) - set(given) == {"decoder_input_ids"}
    assert inputs["decoder_input_ids"].shape[0] == 1
    assert all(inputs[name] is given[name] for name in given)


def test_what_cannot_be_completed_stays_as_it_is() -> None:
    given = {"input": torch.ones(2, 99)}
    assert complete_inputs(torch.nn.Linear(3, 2), given) == given


# --- sound and images ----------------------------------------------------------------------------------------------


def test_sound_goes_through_the_feature_extractor(extractor: Any, tmp_path: Path) -> None:
    tone = (np.sin(np.arange(4000) / 5) * 20_000).astype("<i2")
    raw = read_raw_inputs(extractor, [], [], [write_wave(tmp_path / "tone.wav", tone, 4000)])
    assert raw.audio[0].max() == pytest.approx(20_000 / 32_768, rel=1e-3)
    assert process(extractor, raw, TAKEN)["input_values"].shape == (1, 4000)


@pytest.mark.parametrize("name", ["tone.flac", "floats.wav"])
def test_sound_of_other_formats_is_read_too(extractor: Any, tmp_path: Path, name: str) -> None:
    tone = np.stack([np.full(400, 0.5), np.zeros(400)], axis=1)
    subtype = "FLOAT" if name.endswith(".wav") else None
    soundfile.write(tmp_path / name, tone, 4000, subtype=subtype)
    (sound,) = read_raw_inputs(extractor, [], [], [tmp_path / name]).audio
    np.testing.assert_allclose(sound, np.full(400, 0.25), atol=1e-4)


@pytest.mark.parametrize("kind", ["<i2", "<i4", "u1"])
def test_channels_are_made_one_whatever_the_number_of_bits(extractor: Any, tmp_path: Path, kind: str) -> None:
    numbers = np.zeros((100, 2), dtype=kind)
    numbers[:, 0] = 128 + 64 if kind == "u1" else np.iinfo(kind).max // 2 + 1
    numbers[:, 1] = 128 if kind == "u1" else 0
    path = write_wave(tmp_path / "two.wav", numbers, 4000, channels=2)
    (sound,) = read_raw_inputs(extractor, [], [], [path]).audio
    np.testing.assert_allclose(sound, np.full(100, 0.25), atol=1e-4)


def test_images_go_through_the_image_processor(tmp_path: Path) -> None:
    pictures = pytest.importorskip("PIL.Image")
    processor = transformers.ViTImageProcessor(size={"height": 8, "width": 8})
    paths = [tmp_path / name for name in ("gray.png", "color.png")]
    pictures.new("L", (20, 10), 128).save(paths[0])
    pictures.new("RGB", (5, 30), (255, 0, 0)).save(paths[1])
    made = process(processor, read_raw_inputs(processor, [], paths, []), TAKEN)
    assert made["pixel_values"].shape == (2, 3, 8, 8)
    inputs = make_example_inputs(_small_vit().half(), processor)
    assert isinstance(inputs, dict)
    assert inputs["pixel_values"].shape == (2, 3, 8, 8)
    assert inputs["pixel_values"].dtype is torch.float16


def _small_vit() -> Any:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4
    )
    return transformers.ViTModel(config).eval()


def test_text_and_images_go_through_one_processor_together(tokenizer: Any) -> None:
    pytest.importorskip("PIL.Image")
    images = transformers.ViTImageProcessor(size={"height": 8, "width": 8})
    processor = transformers.VisionTextDualEncoderProcessor(images, tokenizer)
    picture = np.zeros((9, 9, 3), dtype=np.uint8)
    made = process(processor, RawInputs(("the cat",), (picture,)), TAKEN)
    assert {"input_ids", "pixel_values"} <= set(made)


# --- what cannot be --------------------------------------------------------------------------------------------------


def test_kind_that_the_processor_does_not_take_is_refused(tokenizer: Any, extractor: Any) -> None:
    with pytest.raises(InputError, match=r"--input-text: .*Extractor, does not accept .*it accepts --input-audio"):
        process(extractor, RawInputs(("hello",)), TAKEN)
    with pytest.raises(InputError, match=r"--input-image: .*it accepts --input-text"):
        process(tokenizer, RawInputs((), (np.zeros((2, 2, 3)),)), TAKEN)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.wav", "none.wav cannot be read"),
        ("broken.wav", "broken.wav cannot be read"),
        ("empty.wav", "empty.wav is empty"),
        ("fast.wav", "has a sample rate of 8000, and the model expects 4000"),
    ],
)
def test_sound_that_cannot_be_used_is_refused_by_name(extractor: Any, tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "broken.wav").write_bytes(b"RIFF, and no more")
    write_wave(tmp_path / "empty.wav", np.zeros(0, dtype="<i2"), 4000)
    write_wave(tmp_path / "fast.wav", np.zeros(80, dtype="<i2"), 8000)
    with pytest.raises(InputError) as caught:
        read_raw_inputs(extractor, [], [], [tmp_path / name])
    assert said in str(caught.value)


def test_image_that_cannot_be_read_is_refused_by_name(tokenizer: Any, tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"broken\.png cannot be read as an image"):
        read_raw_inputs(tokenizer, [], [tmp_path / "broken.png"], [])


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert"), tokenizer=True)


def inputs_of(path: Path) -> dict[str, list[int]]:
    graph = onnx.load_model(path).graph
    return {value.name: [d.dim_value for d in value.type.tensor_type.shape.dim] for value in graph.input}


def test_export_takes_texts(command: Callable[..., Outcome], folder: Path, tmp_path: Path) -> None:
    texts = ("--input-text", "the cat sat", "--input-text", "the cat")
    outcome = command("export", folder, tmp_path / "bert.onnx", *texts)
    assert outcome.code == 0, outcome.stderr
    assert "synthesized" not in outcome.stderr
    names = ("input_ids", "token_type_ids", "attention_mask")
    assert inputs_of(tmp_path / "bert.onnx") == {name: [2, 5] for name in names}
    verified = command("verify", tmp_path / "bert.onnx", "--model", folder, *texts)
    assert verified.code == 0, verified.stderr


def test_export_names_the_synthesized_inputs(command: Callable[..., Outcome], folder: Path, tmp_path: Path) -> None:
    outcome = command("export", "tests.support.factories:net", tmp_path / "net.onnx")
    assert outcome.code == 0, outcome.stderr
    line = next(line for line in outcome.stderr.splitlines() if line.startswith("inputs synthesized: "))
    assert line == f"inputs synthesized: x {'x'.join(map(str, inputs_of(tmp_path / 'net.onnx')['x']))} float32"
    outcome = command("verify", tmp_path / "net.onnx", "--model", "tests.support.factories:net")
    assert line in outcome.stderr.splitlines(), "the same each time"


@pytest.mark.parametrize("option", [("--input-text", "a"), ("--input-image", "a.png"), ("--input-audio", "a.wav")])
def test_model_without_a_processor_is_said(
    command: Callable[..., Outcome], tmp_path: Path, option: tuple[str, ...]
) -> None:
    outcome = command("export", "tests.support.factories:net", tmp_path / "net.onnx", *option)
    assert outcome.code == 2
    assert f"{option[0]}: Net has no tokenizer or processor" in outcome.error


@pytest.mark.parametrize(
    "options",
    [
        ("--inputs", "a.npz", "--input-text", "a"),
        ("--inputs", "a.npz", "--input-shape", "x=1"),
        ("--input-shape", "x=1", "--input-image", "a.png"),
        ("--inputs", "a.json", "--input-audio", "a.wav"),
    ],
)
def test_two_sources_of_inputs_are_refused_before_anything_is_loaded(
    command: Callable[..., Outcome], tmp_path: Path, options: tuple[str, ...]
) -> None:
    outcome = command("export", "nowhere:nothing", tmp_path / "net.onnx", *options)
    assert outcome.code == 2
    assert f"{options[0]} and {options[2]} both give example inputs: use one of them" in outcome.error
