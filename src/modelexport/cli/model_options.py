"""The options of every command that runs a model: how it is loaded, and what it is run on. Said once for them all."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelexport.cli.output import message_console, printable
from modelexport.errors import InputError, ModelExportError
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits

if TYPE_CHECKING:
    from modelexport.sources.model_source import SourcedModel

MODEL_HELP = (
    "A HuggingFace folder or hub id, package.module:factory or package.module:factory(64, name='a'), timm:NAME, "
    "diffusers:FOLDER#unet, a .pt2 file, or builtin:bert-tiny."
)
ModelArgument = Annotated[str, typer.Argument(help=MODEL_HELP)]
ModelOption = Annotated[str, typer.Option(help=f"The model it was made of: {MODEL_HELP[0].lower()}{MODEL_HELP[1:]}")]

# By the names of LoadOptions, which cannot be read here: it comes with torch.
_LOADING: Mapping[str, tuple[Any, Any]] = {
    "task": (
        Annotated[
            str | None,
            typer.Option(help="What the model is for: text-classification, ..., or AutoModelForCausalLM, ..."),
        ],
        None,
    ),
    "revision": (Annotated[str | None, typer.Option(help="A branch, tag or commit of a model on the hub.")], None),
    "trust_remote_code": (
        Annotated[bool, typer.Option("--trust-remote-code", help="Let Python code that comes with the model run.")],
        False,
    ),
    "dtype": (
        Annotated[str | None, typer.Option(help="The type of the weights: float32, float16, bfloat16.")],
        None,
    ),
    "attn_implementation": (
        Annotated[str | None, typer.Option(help="How transformers computes attention: eager, sdpa.")],
        None,
    ),
    "random_weights": (
        Annotated[
            bool, typer.Option("--random-weights", help="Make up the weights, the same each time; none are read.")
        ],
        False,
    ),
}
_RUNNING: Mapping[str, tuple[Any, Any]] = {
    "input_shape": (
        Annotated[list[str] | None, typer.Option(help="An input as name=1x16 or name=1x16:int64; repeat for more.")],
        None,
    ),
    "inputs": (Annotated[Path | None, typer.Option(help="An .npz or .json file with the inputs by name.")], None),
    "input_text": (
        Annotated[list[str] | None, typer.Option(help="A text for the model's own tokenizer; repeat for more.")],
        None,
    ),
    "input_image": (
        Annotated[list[Path] | None, typer.Option(help="An image file for its own image processor; repeat for more.")],
        None,
    ),
    "input_audio": (
        Annotated[list[Path] | None, typer.Option(help="A sound file for its own feature extractor; repeat for more.")],
        None,
    ),
}
_GIBIBYTE = 2**30
DEFAULT_TIMEOUT = DEFAULT_RUN_LIMITS.seconds or math.inf
DEFAULT_MEMORY_LIMIT = (DEFAULT_RUN_LIMITS.memory_bytes or math.inf) / _GIBIBYTE
TimeoutOption = Annotated[float, typer.Option(min=1, help="Seconds that one run of a file in onnxruntime may take.")]
MemoryLimitOption = Annotated[
    float, typer.Option(min=0.5, help="GiB of memory that onnxruntime may take, mapped weights included.")
]
# By the names of the arguments of `run_limits`.
_LIMITS: Mapping[str, tuple[Any, Any]] = {
    "timeout": (TimeoutOption, DEFAULT_TIMEOUT),
    "memory_limit": (MemoryLimitOption, DEFAULT_MEMORY_LIMIT),
}
# What goes through the model's own processor, which may take several of them together.
_PROCESSED = ("input_text", "input_image", "input_audio")


def run_limits(timeout: float, memory_limit: float) -> RunLimits:
    """The limits that ``--timeout`` and ``--memory-limit`` set; inf stands for no limit."""
    for option, value in (("--timeout", timeout), ("--memory-limit", memory_limit)):
        if math.isnan(value):
            raise InputError(f"{option} {value}: give a number")
    memory = None if math.isinf(memory_limit) else int(memory_limit * _GIBIBYTE)
    return RunLimits(None if math.isinf(timeout) else timeout, memory)


@dataclasses.dataclass(frozen=True)
class ModelRequest:
    """What a command line says about the model that it names.

    Attributes:
        loading: The values of `LoadOptions`.
        running: The values of the options that give inputs.
        limiting: The values of the options that limit runs of a file.
    """

    loading: Mapping[str, Any]
    running: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    limiting: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def limits(self) -> RunLimits:
        """What one run of a file in onnxruntime may take."""
        return run_limits(**self.limiting)

    @property
    def options(self) -> tuple[str, ...]:
        """The options that were given, as they are written."""
        defaults = {**_LOADING, **_RUNNING, **_LIMITS}
        given = {**self.loading, **self.running, **self.limiting}
        return tuple(_written(name) for name, value in given.items() if value and value != defaults[name][1])

    def check(self) -> None:
        """Finds out before anything is loaded what cannot be: a wrong option should not cost the time of a run.

        Raises:
            InputError: Options that exclude each other are given.
        """
        ways = [("inputs",), ("input_shape",), _PROCESSED]
        used = [[_written(name) for name in way if self.running[name]] for way in ways]
        given = [names[0] for names in used if names]
        if len(given) > 1:
            raise InputError(f"{given[0]} and {given[1]} both give example inputs: use one of them")

    def load(self, reference: str) -> SourcedModel:
        """The model, with what its source has to say about it on stderr.

        Raises:
            ModelSourceError: The reference leads to no model.
        """
        from modelexport.sources.model_source import LoadOptions, load_model

        sourced = load_model(reference, LoadOptions(**self.loading))
        for note in sourced.notes:
            message_console().print(printable(f"note: {note}"), markup=False)
        return sourced

    def choose_inputs(self, reference: str, sourced: SourcedModel) -> Any:
        """The example inputs: those that are given, else those that came with the model, else synthesized ones,
        which are printed.

        Raises:
            InputError: Those that are given cannot be used, or none can be synthesized.
        """
        from modelexport.sources.example_inputs import fill_shapes, read_inputs
        from modelexport.sources.inputs.synthesis import describe, make_example_inputs

        if self.running["inputs"] is not None:
            return read_inputs(self.running["inputs"])
        if self.running["input_shape"]:
            return fill_shapes(self.running["input_shape"])
        if any(self.running[name] for name in _PROCESSED):
            return self._processed(reference, sourced)
        if sourced.example_inputs is not None:
            return sourced.example_inputs
        made = make_example_inputs(sourced.model, _processor_to_try(sourced))
        message_console().print(printable(f"synthesized inputs: {describe(made) or 'none'}"), markup=False)
        return made

    def _processed(self, reference: str, sourced: SourcedModel) -> Any:
        """What the model's own processor makes of what is given, with what else forward needs."""
        from modelexport.sources.inputs.synthesis import complete_inputs, describe
        from modelexport.sources.inputs.synthesis.model_facts import ModelFacts
        from modelexport.sources.processed_inputs import process, read_material

        processor = None if sourced.processor is None else sourced.processor()
        if processor is None:
            option = next(_written(name) for name in _PROCESSED if self.running[name])
            raise InputError(
                f"{option}: {reference} came without a tokenizer or processor; "
                "give --inputs file.npz or --input-shape name=1x16"
            )
        material = read_material(processor, *(self.running[name] or [] for name in _PROCESSED))
        facts = ModelFacts.read(sourced.model)
        given = process(processor, material, facts.parameters, facts.dtype)
        inputs = complete_inputs(sourced.model, given)
        added = {name: inputs[name] for name in inputs if name not in given} if isinstance(inputs, dict) else {}
        if added:
            message_console().print(printable(f"synthesized inputs: {describe(added)}"), markup=False)
        return inputs


def _written(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _processor_to_try(sourced: SourcedModel) -> Any | None:
    """The model's own processor; where it cannot be loaded, inputs can still be synthesized without it."""
    try:
        return None if sourced.processor is None else sourced.processor()
    except ModelExportError as error:
        message_console().print(printable(f"note: {error}"), markup=False)
        return None


def loads_model(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of loading in place of its parameter `request`."""
    return _with_options(command, {"loading": _LOADING})


def runs_model(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of loading and of inputs in place of its parameter `request`."""
    return _with_options(command, {"loading": _LOADING, "running": _RUNNING})


def runs_file(command: Callable[..., None]) -> Callable[..., None]:
    """`runs_model` for a command that runs an ONNX file beside the model: with the options that limit such a run."""
    return _with_options(command, {"loading": _LOADING, "running": _RUNNING, "limiting": _LIMITS})


def _with_options(
    command: Callable[..., None], groups: Mapping[str, Mapping[str, tuple[Any, Any]]]
) -> Callable[..., None]:
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name != "request":
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for group in groups.values()
            for name, (annotation, default) in group.items()
        ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        taken = {name: {option: given.pop(option) for option in options} for name, options in groups.items()}
        command(**given, request=ModelRequest(**taken))

    # What typer reads the options from.
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # any function takes one
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
