"""Convert text, images and audio to inputs of forward, with the model's own tokenizer or processor."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import wave
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from modelexport.display import in_one_line
from modelexport.errors import InputError

_SAMPLE_TEXTS = ("The quick brown fox jumps over the lazy dog.", "Every module knows its own nodes.")
_SAMPLE_SIDE = 64
_SAMPLE_SECONDS = 1
_USUAL_RATE = 16_000
# The argument names of processors, as in the base classes of transformers.
_KEYS = {"texts": ("text",), "images": ("images",), "audio": ("audio", "raw_speech", "audios")}
_OPTIONS = {"texts": "--input-text", "images": "--input-image", "audio": "--input-audio"}
_PCM = {1: np.uint8, 2: np.int16, 4: np.int32}


@dataclasses.dataclass(frozen=True)
class RawInputs:
    """Raw inputs of a processor: texts, images, and audio samples of one sample rate."""

    texts: tuple[str, ...] = ()
    images: tuple[Any, ...] = ()
    audio: tuple[np.ndarray[Any, Any], ...] = ()

    def given(self) -> dict[str, tuple[Any, ...]]:
        """The kinds that are not empty."""
        return {name: value for name, value in vars(self).items() if value}


def read_raw_inputs(processor: object, texts: list[str], images: list[Path], audio: list[Path]) -> RawInputs:
    """Read images and audio files; texts are used as they are."""
    rate = sampling_rate(processor)
    return RawInputs(
        tuple(texts), tuple(_read_image(path) for path in images), tuple(_read_audio(path, rate) for path in audio)
    )


def process(
    processor: object, raw: RawInputs, accepted: Mapping[str, Any], dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Call the processor, and keep the results that forward accepts.

    Args:
        processor: The model's own processor.
        accepted: The names of forward's arguments.
        dtype: The dtype of the model's weights, which processors do not know.
    """
    keys = _call_keys(processor)
    name = type(processor).__name__
    arguments: dict[str, Any] = {}
    for kind, values in raw.given().items():
        if kind not in keys:
            raise InputError(
                f"{_OPTIONS[kind]}: the model's processor, a {name}, does not accept this option; "
                f"it accepts {' and '.join(_OPTIONS[known] for known in keys) or 'none of these options'}"
            )
        arguments[keys[kind]] = list(values)
    options: dict[str, Any] = {"return_tensors": "pt"}
    if raw.audio:
        options["sampling_rate"] = sampling_rate(processor)
    if len(raw.texts) > 1 or len(raw.audio) > 1:
        options["padding"] = True
    try:
        result = processor(**arguments, **options)  # type: ignore[operator]  # processors are called
    except Exception as error:
        given = " and ".join(_OPTIONS[kind] for kind in raw.given())
        raise InputError(f"{given}: the model's processor, a {name}, failed: {in_one_line(error)}") from error
    found = {key: _in_type(value, dtype) for key, value in dict(result).items() if key in accepted}
    if not any(isinstance(value, torch.Tensor) for value in found.values()):
        raise InputError(
            f"the model's processor, a {name}, returns {', '.join(map(str, dict(result))) or 'nothing'}, "
            f"and forward accepts {', '.join(accepted)}: give --inputs file.npz"
        )
    return found


def _in_type(value: object, dtype: torch.dtype) -> object:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def samples(processor: object) -> Iterator[RawInputs]:
    """Raw inputs to try a processor with: all kinds that it accepts together, then each alone."""
    keys = _call_keys(processor)
    generator = np.random.default_rng(0)
    pictures = tuple(generator.integers(0, 256, (_SAMPLE_SIDE, _SAMPLE_SIDE, 3), dtype=np.uint8) for _ in range(2))
    rate = sampling_rate(processor) or _USUAL_RATE
    times = np.arange(_SAMPLE_SECONDS * rate, dtype=np.float32) / rate
    tones = tuple(np.sin(2 * np.pi * pitch * times).astype(np.float32) for pitch in (440, 660))
    marks = [getattr(processor, f"{kind}_token", None) for kind in ("image", "audio")]
    marked = "".join(mark for mark in marks if isinstance(mark, str))
    everything = RawInputs(
        tuple(f"{marked}{text}" for text in _SAMPLE_TEXTS) if "texts" in keys else (),
        pictures if "images" in keys else (),
        tones if "audio" in keys else (),
    )
    if len(keys) > 1:
        yield everything
    plain = dataclasses.replace(everything, texts=_SAMPLE_TEXTS if "texts" in keys else ())
    for kind, values in plain.given().items():
        yield RawInputs(**{kind: values})
        # A tokenizer without a padding token accepts only one text at a time.
        yield RawInputs(**{kind: values[:1]})


def sampling_rate(processor: object) -> int | None:
    """The sample rate of the processor, or of its part for audio."""
    for part in (processor, *vars(processor).values()):
        rate = getattr(part, "sampling_rate", None)
        if isinstance(rate, int):
            return rate
    return None


def _call_keys(processor: object) -> dict[str, str]:
    parameters = inspect.signature(type(processor).__call__).parameters
    found = {kind: key for kind, names in _KEYS.items() for key in names if key in parameters}
    # A processor with generic arguments has parts with specific ones.
    for part in () if found else vars(processor).values():
        if callable(part):
            found |= {kind: _KEYS[kind][0] for kind in _call_keys(part)}
    return found


def _read_image(path: Path) -> Any:
    try:
        pictures = importlib.import_module("PIL.Image")
    except ImportError as error:
        raise InputError("--input-image needs Pillow, which is not installed: pip install 'modelexport[hf]'") from error
    try:
        with pictures.open(path) as picture:
            return picture.convert("RGB")
    except Exception as error:
        raise InputError(f"--input-image {path} cannot be read as an image: {in_one_line(error)}") from error


def _read_audio(path: Path, wanted: int | None) -> np.ndarray[Any, Any]:
    numbers, rate = _read_wave(path) if path.suffix.lower() in (".wav", ".wave") else _read_with_soundfile(path)
    if wanted is not None and rate != wanted:
        raise InputError(
            f"--input-audio {path} has a sample rate of {rate}, and the model expects {wanted}: "
            f"convert it first, with ffmpeg -i {path.name} -ar {wanted} converted.wav"
        )
    if not len(numbers):
        raise InputError(f"--input-audio {path} is empty")
    # Mixed down to one channel.
    single: np.ndarray[Any, Any] = np.asarray(numbers, dtype=np.float32).mean(axis=1)
    return single


def _read_wave(path: Path) -> tuple[np.ndarray[Any, Any], int]:
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            data = file.readframes(file.getnframes())
    except (wave.Error, EOFError, OSError) as error:
        # Float and compressed audio have the same extension, and need soundfile.
        if path.is_file() and importlib.util.find_spec("soundfile") is not None:
            return _read_with_soundfile(path)
        raise InputError(f"--input-audio {path} cannot be read as a PCM wave file: {in_one_line(error)}") from error
    if width not in _PCM:
        raise InputError(f"--input-audio {path} has {8 * width} bits per sample: convert it to 16 bits")
    numbers = np.frombuffer(data, dtype=np.dtype(_PCM[width]).newbyteorder("<"))
    numbers = numbers[: len(numbers) // channels * channels].reshape(-1, channels).astype(np.float32)
    if width == 1:
        return (numbers - 128) / 128, rate
    return numbers / float(1 << (8 * width - 1)), rate


def _read_with_soundfile(path: Path) -> tuple[np.ndarray[Any, Any], int]:
    try:
        library = importlib.import_module("soundfile")
    except ImportError as error:
        raise InputError(
            f"--input-audio {path} is not a .wav file, and other formats need soundfile, which is not installed: "
            "pip install 'modelexport[audio]'"
        ) from error
    try:
        numbers, rate = library.read(path, dtype="float32", always_2d=True)
    except Exception as error:
        raise InputError(f"--input-audio {path} cannot be read as audio: {in_one_line(error)}") from error
    return numbers, int(rate)
