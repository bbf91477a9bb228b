"""A job: one model, its inputs, the options of its export, and what is done with the file afterwards."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

import msgspec

from modelexport.analysis.query import parse_expression
from modelexport.display import shortened
from modelexport.errors import InputError
from modelexport.hierarchy import CHECK_LEVELS
from modelexport.input_options import read_dynamic, read_shape

# What a step name may be followed by: `extract:SELECTOR`.
STEPS = {"verify": False, "validate": False, "profile": False, "extract": True, "view": False}
_MODEL_OPTIONS = ("task", "revision", "trust_remote_code", "dtype", "attn_implementation", "random_weights")
_INPUT_OPTIONS = ("inputs", "input_shape", "input_text", "input_image", "input_audio")
_LONGEST_NAME = 100
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
# What an output has besides the folders of jobs.
_RESERVED = ("entries", "records", "logs", "objects", "index.html", "catalog.sqlite")
# The registry and the strategies have these names as well, but import torch.
STRATEGIES = ("auto", "fx", "htp", "usage_based")
EXPORTERS = ("dynamo", "transformers", "dynamo-with-caches", "torchscript")
# torch's floating-point types that operators compute with.
DTYPES = ("float32", "float16", "bfloat16", "float64", "float", "half", "double")
_STRATEGY_PLUGINS = "modelexport.strategies"
_LONGEST_SHOWN = 60
# GiB: more than any machine has, and a 64-bit number in bytes.
_LARGEST = {"timeout": math.inf, "memory": 2**32, "opset": 1000}
_SEEDS = range(-(2**63), 2**63)


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One export. The fields are those of `modelexport export`, and a few more.

    Attributes:
        model: The model reference.
        name: The name of its folder in the output; by default made from the model and the matrix.
        task, revision, trust_remote_code, dtype, attn_implementation, random_weights: How the model is loaded.
        inputs, input_shape, input_text, input_image, input_audio: The example inputs.
        strategy, exporter, opset, optimize, dynamic, torch_names, allow_specialization, torch_nn_exceptions, boundary,
            enable_advanced_resolution, external_data, private, check, check_bytes, probes: How it is exported.
        steps: What is done afterwards: ``verify``, ``validate``, ``profile``, ``extract:SELECTOR``, ``view``.
        seed: The seed of all random numbers, so that the same job gives the same bytes.
        depends: Files and patterns that the result depends on besides the model's own: weights that a factory reads.
        timeout: Seconds for the whole job.
        memory: GiB for each of its processes.
    """

    model: str
    name: str = ""
    task: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    dtype: str | None = None
    attn_implementation: str | None = None
    random_weights: bool = False
    inputs: str | None = None
    input_shape: tuple[str, ...] = ()
    input_text: tuple[str, ...] = ()
    input_image: tuple[str, ...] = ()
    input_audio: tuple[str, ...] = ()
    strategy: str = "auto"
    exporter: str | None = None
    opset: int | None = None
    optimize: bool = True
    dynamic: tuple[str, ...] = ()
    torch_names: bool = False
    allow_specialization: bool = False
    torch_nn_exceptions: str | None = None
    boundary: tuple[str, ...] = ()
    enable_advanced_resolution: bool = True
    external_data: bool | None = None
    private: bool = False
    check: str | None = None
    check_bytes: int | None = None
    probes: int = 0
    steps: tuple[str, ...] = ()
    seed: int = 0
    depends: tuple[str, ...] = ()
    timeout: float | None = None
    memory: float | None = None

    def model_options(self) -> dict[str, Any]:
        """The fields of `LoadOptions`."""
        return {name: getattr(self, name) for name in _MODEL_OPTIONS}

    def input_options(self) -> dict[str, Any]:
        """The arguments of `choose_inputs`."""
        names = {"inputs": "file", "input_shape": "shapes", "input_text": "texts", "input_image": "images"}
        return {names.get(name, name.removeprefix("input_")): getattr(self, name) for name in _INPUT_OPTIONS}

    def settings(self) -> dict[str, Any]:
        """The fields that were set, without those that do not change the result."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return {name: value for name, value in found.items() if name not in ("model", "name", "timeout", "memory")}


FIELDS = {field.name: field.type for field in msgspec.structs.fields(Job)}


def make_job(fields: Mapping[str, Any], where: str) -> Job:
    """A job from its fields.

    Args:
        fields: The fields by name.
        where: Where they were written, for messages: ``jobs.toml, job 3``.

    Raises:
        InputError: A field is unknown, has the wrong type or cannot have this value.
    """
    check_fields(fields, where)
    if "model" not in fields:
        raise InputError(f"{where}: there is no field 'model': give the model to export")
    # One text where several are possible.
    given = {
        name: [value] if isinstance(value, str) and FIELDS.get(name) == tuple[str, ...] else value
        for name, value in fields.items()
    }
    try:
        job = msgspec.convert(given, Job)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {_readable(error)}") from error
    _check_values(job, where)
    return job


def check_fields(fields: Mapping[str, Any], where: str, others: tuple[str, ...] = ()) -> None:
    """Refuse fields that there are not.

    Raises:
        InputError: Names the field, and the one that may be meant.
    """
    for name in fields:
        if name not in FIELDS and name not in others:
            shown = shortened(str(name), _LONGEST_SHOWN)
            raise InputError(f"{where}: unknown field {shown!r}; {similar(shown, [*FIELDS, *others])}")


def similar(name: str, known: list[str]) -> str:
    """What may be meant by a name that is not known."""
    close = difflib.get_close_matches(name.replace("-", "_"), known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"the fields are {', '.join(known)}"


def check_name(name: str, where: str) -> None:
    """Refuse the name of a job that cannot be that of a folder on any storage.

    Raises:
        InputError: It cannot.
    """
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME or name.lower() in _RESERVED:
        raise InputError(
            f"{where}: {shortened(name, _LONGEST_SHOWN)!r} cannot be the name of a job: use up to {_LONGEST_NAME} "
            f"letters, digits and . _ + -, but not {', '.join(_RESERVED)}"
        )


def _check_values(job: Job, where: str) -> None:
    _check_texts(job, where)
    _check_numbers(job, where)
    _check_choices(job, where)
    try:
        for shape in job.input_shape:
            # Which input a shape without a name is for is known with the model.
            read_shape(shape, ("",))
        read_dynamic(job.dynamic)
        for step in job.steps:
            _check_step(step)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    _check_inputs(job, where)
    if job.name:
        check_name(job.name, where)


def _check_choices(job: Job, where: str) -> None:
    plugins = [entry.name for entry in entry_points(group=_STRATEGY_PLUGINS)]
    choices = {"strategy": (*STRATEGIES, *plugins), "check": CHECK_LEVELS, "dtype": DTYPES}
    if not plugins:
        # A strategy of a plug-in can have exporters of its own.
        choices["exporter"] = EXPORTERS
    for name, known in choices.items():
        value = getattr(job, name)
        if value is not None and value not in known:
            raise InputError(f"{where}: {name} is {shortened(value, _LONGEST_SHOWN)!r}: write {', '.join(known)}")


def _check_texts(job: Job, where: str) -> None:
    for name in FIELDS:
        value = getattr(job, name)
        try:
            for text in (value,) if isinstance(value, str) else value if isinstance(value, tuple) else ():
                text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{where}: field {name!r} has half of a surrogate pair, which is not Unicode") from error


def check_limits(where: str, **limits: Any) -> None:
    """Refuse a limit that is not a positive number.

    Raises:
        InputError: Names the limit.
    """
    for name, value in limits.items():
        most = _LARGEST[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value <= most):
            limit = "" if math.isinf(most) else f", at most {most:,}"
            shown = shortened(str(value), _LONGEST_SHOWN)
            raise InputError(f"{where}: {name} is {shown}: give a positive number{limit}")


def _check_numbers(job: Job, where: str) -> None:
    check_limits(where, timeout=job.timeout, memory=job.memory, opset=job.opset)
    if job.seed not in _SEEDS:
        raise InputError(f"{where}: seed is {shortened(str(job.seed), _LONGEST_SHOWN)}: give a number of 64 bits")


def _check_step(step: str) -> None:
    kind, colon, argument = step.partition(":")
    if kind not in STEPS:
        raise InputError(f"unknown step {kind!r}; {similar(kind, list(STEPS))}")
    if STEPS[kind] and not argument:
        raise InputError(f"step {kind!r} needs a selector: write {kind}:encoder.layer.0")
    if colon and not STEPS[kind]:
        raise InputError(f"step {kind!r} takes nothing after a colon: write {kind}")
    if STEPS[kind]:
        parse_expression(argument)


def _check_inputs(job: Job, where: str) -> None:
    given = [name for name in _INPUT_OPTIONS if getattr(job, name)]
    raw = [name for name in given if name not in ("inputs", "input_shape")]
    exclusive = [name for name in given if name not in raw[1:]]
    if len(exclusive) > 1:
        raise InputError(f"{where}: {exclusive[0]} and {exclusive[1]} both give example inputs: use one of them")


def _readable(error: msgspec.ValidationError) -> str:
    """msgspec's message with the name of the field in front: ``opset: Expected `int`, got `str```."""
    text, _, place = str(error).partition(" - at `$")
    name = place.strip(".`")
    return f"field {name!r} is wrong: {text[0].lower()}{text[1:]}" if name else text
