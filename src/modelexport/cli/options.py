"""Options that several commands share, defined once: a command takes them as one dataclass."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.models import ArgumentInfo, OptionInfo

from modelexport.deadline import read_within_limit
from modelexport.errors import InputError


def option(panel: str | None, text: str, *names: str, **limits: Any) -> Any:
    """An option of a command, in a panel of its help."""
    return typer.Option(*names, help=text, rich_help_panel=panel, **limits)


# Python refuses to parse a number of thousands of digits.
_MOST_DIGITS = 12
SELECTOR_HELP = "Module paths, tags, class:, op:, and/or/not; docs/selectors.md explains them."
SelectOption = Annotated[
    str | None,
    typer.Option("--select", metavar="SELECTOR", help=f"Only what this selector picks. {SELECTOR_HELP}"),
]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", min=0, help="Rows of each table; 0 shows all. By default 20 on a terminal, all elsewhere."),
]
ForceOption = Annotated[bool, option("Output", "Replace existing files.", "--force")]
TorchNnExceptionsOption = Annotated[
    str | None, option("Owners and tags", "torch.nn classes that are in tags: A,B,C, or all, or none.")
]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is a dataclass by its fields, which are options.

    The command has the deadline for reading files.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        parameter.name: parameter.annotation
        for parameter in signature.parameters.values()
        if dataclasses.is_dataclass(parameter.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name not in groups:
            parameters.append(parameter)
            continue
        kinds = typing.get_type_hints(groups[parameter.name], include_extras=True)
        parameters += [
            inspect.Parameter(field.name, parameter.kind, default=field.default, annotation=kinds[field.name])
            for field in _options(groups[parameter.name])
        ]
    for parameter in parameters:
        _name_values(parameter)

    @functools.wraps(command)
    def run(**given: Any) -> None:
        built = {
            name: group(**{field.name: given.pop(field.name) for field in _options(group)})
            for name, group in groups.items()
        }
        files = [value for value in given.values() if isinstance(value, Path) and value.is_file()]
        read_within_limit(lambda: command(**given, **built), *files)

    # typer reads the options from these two.
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # any function takes one
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = _one_line_per_paragraph(inspect.getdoc(command) or "")
    return run


def _one_line_per_paragraph(text: str) -> str:
    """Join the lines of each paragraph: typer keeps line breaks, which do not fit the width of the terminal."""
    return "\n\n".join(part if part.startswith(" ") else " ".join(part.split()) for part in text.split("\n\n"))


def _name_values(parameter: inspect.Parameter) -> None:
    """Write arguments in capitals, as our texts do, and no type beside flags."""
    for info in getattr(parameter.annotation, "__metadata__", ()):
        if isinstance(info, ArgumentInfo) and info.metavar is None:
            info.metavar = parameter.name.upper()
        elif isinstance(info, OptionInfo) and info.metavar is None and bool in _types(parameter.annotation):
            info.metavar = ""


def _types(annotation: Any) -> tuple[Any, ...]:
    (kind,) = get_args(annotation)[:1]
    return (kind, *get_args(kind))


def _options(group: Any) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(group) if field.init]


def given_options(*groups: Any) -> list[str]:
    """The command-line names of the options that do not have their default value."""
    return [
        f"--{field.name.replace('_', '-')}"
        for group in groups
        for field in _options(group)
        if getattr(group, field.name) not in (field.default, [])
    ]


def refuse_other_options(context: typer.Context, why: str, allowed: frozenset[str]) -> None:
    """Refuse options on the command line that would have no effect.

    Args:
        context: What typer parsed.
        why: Why they would have none.
        allowed: The names of the parameters that may be given.

    Raises:
        InputError: Names the option.
    """
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in allowed:
            raise InputError(f"{why}: leave out {parameter.opts[0]}")


def parse_axes(options: list[str]) -> dict[str, int]:
    """The sizes of dynamic axes, from options such as ``batch=8``.

    Raises:
        InputError: An option cannot be read.
    """
    sizes: dict[str, int] = {}
    for text in options:
        name, _, size = text.partition("=")
        if not name or not size.isdecimal() or len(size) > _MOST_DIGITS:
            raise InputError(f"--axis {text!r} cannot be read: write batch=8")
        sizes[name] = int(size)
    return sizes
