"""Options that several commands share, defined once: a command takes them as one object."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Protocol, get_args

import typer
from typer.models import ArgumentInfo, OptionInfo

SELECTOR_HELP = "Module paths, tags, class:, op:, and/or/not; docs/selectors.md explains them."
SelectOption = Annotated[
    str | None,
    typer.Option("--select", metavar="SELECTOR", help=f"Only what this selector picks. {SELECTOR_HELP}"),
]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", min=0, help="Rows of each table; 0 shows all. By default 20 on a terminal, all elsewhere."),
]
TorchNnExceptionsOption = Annotated[
    str | None,
    typer.Option(help="torch.nn classes that are in tags: A,B,C, or all, or none.", rich_help_panel="Owners and tags"),
]


class OptionGroup(Protocol):
    """Options that a command takes as one parameter of this type."""

    OPTIONS: ClassVar[Mapping[str, tuple[Any, Any]]]

    def __init__(self, **values: Any) -> None:
        """Take the value of each option by its name."""


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is an option group by the options of that group."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, type[OptionGroup]] = {
        parameter.name: parameter.annotation
        for parameter in signature.parameters.values()
        if hasattr(parameter.annotation, "OPTIONS")
    }
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        options = groups[parameter.name].OPTIONS if parameter.name in groups else None
        if options is None:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in options.items()
        ]
    for parameter in parameters:
        _name_values(parameter)

    @functools.wraps(command)
    def run(**given: Any) -> None:
        built = {
            name: group(**{option: given.pop(option) for option in group.OPTIONS}) for name, group in groups.items()
        }
        command(**given, **built)

    # typer reads the options from these two.
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # any function takes one
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


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


def written(option: str) -> str:
    """The command-line name of an option."""
    return f"--{option.replace('_', '-')}"


def parse_exceptions(text: str | None) -> list[str] | str | None:
    """The torch.nn exceptions as a list of names, or one of the words ``all`` and ``none``."""
    if text is None or text in ("all", "none"):
        return text
    return [name.strip() for name in text.split(",") if name.strip()]
