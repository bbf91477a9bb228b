"""Options of commands that run a model: loading, example inputs, run limits."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelexport.cli.options import given_options, option
from modelexport.cli.output import Output
from modelexport.errors import InputError
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits

if TYPE_CHECKING:
    from modelexport.sources.loaders import SourcedModel

_GIBIBYTE = 2**30

MODEL_HELP = (
    "A HuggingFace folder or hub id, package.module:factory, file.py:Net(64, name='a'), timm:NAME, "
    "diffusers:FOLDER#unet, a .pt2 file, or builtin:bert-tiny; docs/models.md explains them."
)
ModelArgument = Annotated[str, typer.Argument(help=MODEL_HELP, show_default=False)]
ModelOption = Annotated[
    str, typer.Option(help=f"The model that the file was exported from: {MODEL_HELP[0].lower()}{MODEL_HELP[1:]}")
]


@dataclasses.dataclass(frozen=True)
class ModelLoading:
    """The options for loading a model: the fields of `LoadOptions`, which needs torch."""

    task: Annotated[
        str | None, option("Model", "The task of the model: text-classification, or AutoModelForCausalLM, ...")
    ] = None
    revision: Annotated[str | None, option("Model", "A branch, tag or commit of a model on the hub.")] = None
    trust_remote_code: Annotated[
        bool, option("Model", "Allow Python code that comes with the model to run.", "--trust-remote-code")
    ] = False
    dtype: Annotated[str | None, option("Model", "The data type of the weights: float32, float16, bfloat16.")] = None
    attn_implementation: Annotated[
        str | None, option("Model", "The attention implementation of transformers: eager, sdpa.")
    ] = None
    random_weights: Annotated[
        bool, option("Model", "Random weights with a fixed seed; no weights are read.", "--random-weights")
    ] = False

    def load(self, reference: str, out: Output) -> SourcedModel:
        """The model, with the notes of its source on stderr.

        Raises:
            ModelSourceError: The model cannot be loaded.
        """
        from modelexport.sources.loaders import LoadOptions, load_model

        sourced = load_model(reference, LoadOptions(**dataclasses.asdict(self)))
        for note in sourced.notes:
            out.note(f"note: {note}")
        return sourced


@dataclasses.dataclass(frozen=True)
class InputOptions:
    """The options for example inputs."""

    inputs: Annotated[Path | None, option("Inputs", "An .npz or .json file with the inputs by name.")] = None
    input_shape: Annotated[
        list[str] | None,
        option(
            "Inputs",
            "An input as name=1x16 or name=1x16:int64, pair.left=1x16 if nested, 1x16 if it is the only one; repeat.",
        ),
    ] = None
    input_text: Annotated[list[str] | None, option("Inputs", "A text for the model's tokenizer; repeat for more.")] = (
        None
    )
    input_image: Annotated[
        list[Path] | None, option("Inputs", "An image file for the model's image processor; repeat for more.")
    ] = None
    input_audio: Annotated[
        list[Path] | None, option("Inputs", "An audio file for the model's feature extractor; repeat for more.")
    ] = None

    def check(self) -> None:
        """Check, before anything is loaded, that options do not exclude each other.

        Raises:
            InputError: Two options exclude each other.
        """
        given = given_options(self)
        # Text, images and audio can be combined.
        raw = [name for name in given if name not in ("--inputs", "--input-shape")]
        exclusive = [name for name in given if name not in raw[1:]]
        if len(exclusive) > 1:
            raise InputError(f"{exclusive[0]} and {exclusive[1]} both give example inputs: use one of them")

    def choose(self, sourced: SourcedModel, out: Output, file: Path | None = None) -> Any:
        """The example inputs, with a note if some were synthesized: for a file of the model as it takes them.

        Raises:
            InputError: The given inputs cannot be used, or no inputs can be synthesized.
        """
        from modelexport.sources.inputs import choose_inputs

        chosen = choose_inputs(
            sourced,
            file=self.inputs,
            shapes=self.input_shape or (),
            texts=self.input_text or (),
            images=self.input_image or (),
            audio=self.input_audio or (),
            onnx_file=file,
        )
        for note in chosen.notes:
            out.note(note)
        return chosen.inputs


@dataclasses.dataclass(frozen=True)
class RunLimitOptions:
    """The options for the limits of a run in onnxruntime."""

    timeout: Annotated[float, option("Limits", "Seconds for one run of the file in onnxruntime.", min=1)] = (
        DEFAULT_RUN_LIMITS.seconds or math.inf
    )
    memory_limit: Annotated[
        float, option("Limits", "GiB of memory for onnxruntime, mapped weights included.", min=0.5)
    ] = (DEFAULT_RUN_LIMITS.memory_bytes or math.inf) / _GIBIBYTE

    @property
    def limits(self) -> RunLimits:
        """The limits; ``inf`` stands for no limit.

        Raises:
            InputError: One of them is not a number.
        """
        for name, value in (("--timeout", self.timeout), ("--memory-limit", self.memory_limit)):
            if math.isnan(value):
                raise InputError(f"{name} {value}: give a number, or inf for no limit")
        return RunLimits(
            None if math.isinf(self.timeout) else self.timeout,
            None if math.isinf(self.memory_limit) else int(self.memory_limit * _GIBIBYTE),
        )
