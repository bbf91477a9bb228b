"""Options of commands that run a model: loading, example inputs, run limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from modelexport.cli.options import written
from modelexport.cli.output import Output
from modelexport.errors import InputError
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits

if TYPE_CHECKING:
    from modelexport.sources.loaders import SourcedModel

_GIBIBYTE = 2**30

MODEL_HELP = (
    "A HuggingFace folder or hub id, package.module:factory or package.module:factory(64, name='a'), timm:NAME, "
    "diffusers:FOLDER#unet, a .pt2 file, or builtin:bert-tiny; docs/models.md explains them."
)
ModelArgument = Annotated[str, typer.Argument(help=MODEL_HELP, show_default=False)]
ModelOption = Annotated[
    str, typer.Option(help=f"The model that the file was exported from: {MODEL_HELP[0].lower()}{MODEL_HELP[1:]}")
]


def _option(kind: Any, panel: str, text: str, *names: str) -> Any:
    return Annotated[kind, typer.Option(*names, help=text, rich_help_panel=panel)]


class ModelLoading:
    """The options for loading a model, as `LoadOptions` takes them, which needs torch."""

    OPTIONS: ClassVar[Mapping[str, tuple[Any, Any]]] = {
        "task": (
            _option(str | None, "Model", "The task of the model: text-classification, or AutoModelForCausalLM, ..."),
            None,
        ),
        "revision": (_option(str | None, "Model", "A branch, tag or commit of a model on the hub."), None),
        "trust_remote_code": (
            _option(bool, "Model", "Allow Python code that comes with the model to run.", "--trust-remote-code"),
            False,
        ),
        "dtype": (_option(str | None, "Model", "The data type of the weights: float32, float16, bfloat16."), None),
        "attn_implementation": (
            _option(str | None, "Model", "The attention implementation of transformers: eager, sdpa."),
            None,
        ),
        "random_weights": (
            _option(bool, "Model", "Random weights with a fixed seed; no weights are read.", "--random-weights"),
            False,
        ),
    }

    def __init__(self, **values: Any) -> None:
        self._values = values

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the given options."""
        return tuple(written(name) for name, value in self._values.items() if value)

    def load(self, reference: str, out: Output) -> SourcedModel:
        """The model, with the notes of its source on stderr.

        Raises:
            ModelSourceError: The model cannot be loaded.
        """
        from modelexport.sources.loaders import LoadOptions, load_model

        sourced = load_model(reference, LoadOptions(**self._values))
        for note in sourced.notes:
            out.note(f"note: {note}")
        return sourced


class InputOptions:
    """The options for example inputs."""

    OPTIONS: ClassVar[Mapping[str, tuple[Any, Any]]] = {
        "input_shape": (
            _option(list[str] | None, "Inputs", "An input as name=1x16 or name=1x16:int64; repeat for more."),
            None,
        ),
        "inputs": (_option(Path | None, "Inputs", "An .npz or .json file with the inputs by name."), None),
        "input_text": (
            _option(list[str] | None, "Inputs", "A text for the model's tokenizer; repeat for more."),
            None,
        ),
        "input_image": (
            _option(list[Path] | None, "Inputs", "An image file for the model's image processor; repeat for more."),
            None,
        ),
        "input_audio": (
            _option(list[Path] | None, "Inputs", "An audio file for the model's feature extractor; repeat for more."),
            None,
        ),
    }

    def __init__(self, **values: Any) -> None:
        self._values = values

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the given options."""
        return tuple(written(name) for name, value in self._values.items() if value)

    def check(self) -> None:
        """Check, before anything is loaded, that options do not exclude each other.

        Raises:
            InputError: Two options exclude each other.
        """
        groups = [("inputs",), ("input_shape",), ("input_text", "input_image", "input_audio")]
        used = [[written(name) for name in group if self._values[name]] for group in groups]
        given = [names[0] for names in used if names]
        if len(given) > 1:
            raise InputError(f"{given[0]} and {given[1]} both give example inputs: use one of them")

    def choose(self, sourced: SourcedModel, out: Output) -> Any:
        """The example inputs, with a note if some were synthesized.

        Raises:
            InputError: The given inputs cannot be used, or no inputs can be synthesized.
        """
        from modelexport.sources.inputs import choose_inputs

        chosen = choose_inputs(
            sourced,
            file=self._values["inputs"],
            shapes=self._values["input_shape"] or (),
            texts=self._values["input_text"] or (),
            images=self._values["input_image"] or (),
            audio=self._values["input_audio"] or (),
        )
        for note in chosen.notes:
            out.note(note)
        return chosen.inputs


class RunLimitOptions:
    """The options for the limits of a run in onnxruntime."""

    OPTIONS: ClassVar[Mapping[str, tuple[Any, Any]]] = {
        "timeout": (
            Annotated[
                float,
                typer.Option(min=1, help="Seconds for one run of the file in onnxruntime.", rich_help_panel="Limits"),
            ],
            DEFAULT_RUN_LIMITS.seconds or math.inf,
        ),
        "memory_limit": (
            Annotated[
                float,
                typer.Option(
                    min=0.5, help="GiB of memory for onnxruntime, mapped weights included.", rich_help_panel="Limits"
                ),
            ],
            (DEFAULT_RUN_LIMITS.memory_bytes or math.inf) / _GIBIBYTE,
        ),
    }

    def __init__(self, **values: Any) -> None:
        self._values = values

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the given options."""
        return tuple(written(name) for name, value in self._values.items() if value != self.OPTIONS[name][1])

    @property
    def limits(self) -> RunLimits:
        """The limits; ``inf`` stands for no limit.

        Raises:
            InputError: One of them is not a number.
        """
        for name, value in self._values.items():
            if math.isnan(value):
                raise InputError(f"{written(name)} {value}: give a number, or inf for no limit")
        seconds, memory = self._values["timeout"], self._values["memory_limit"]
        return RunLimits(
            None if math.isinf(seconds) else seconds, None if math.isinf(memory) else int(memory * _GIBIBYTE)
        )
