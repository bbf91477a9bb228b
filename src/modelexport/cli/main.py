"""The `modelexport` command: the table of subcommands, and the one place that turns errors into messages."""

from __future__ import annotations

import importlib
import importlib.metadata
import io
import logging
import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from modelexport._version import __version__
from modelexport.cli.options import with_options
from modelexport.cli.output import discard_stdout, message
from modelexport.errors import ModelExportError

_BAD_INPUT = 2
_INTERRUPTED = 130
# What a shell shows for a program that wrote to a closed pipe: 128 and the number of SIGPIPE.
_CLOSED_PIPE = 141
# typer gives no name to the base of its errors about arguments.
_USAGE_ERROR: Any = typer.BadParameter.__base__
_SETTINGS = {"help_option_names": ["-h", "--help"]}
_LIBRARIES = ("torch", "onnx", "onnxruntime", "transformers")

# Each command by panel: its name, which is also that of its module and function, and the first line of its help.
# Modules are imported only when their command runs.
_COMMANDS = {
    "Export": {
        "export": "Export a model to ONNX with every node attributed to the module call it came from.",
        "inspect": "Show what a model is like, and which strategies an export would try.",
    },
    "Look": {
        "tree": "Show the module tree of a file with node and parameter counts.",
        "analyze": "Show what a file is made of: nodes, operations and parameters by module and by class.",
        "select": "List the nodes that a selector picks, in the form that a tool takes.",
        "schema": "Print the JSON Schema of the sidecar file or of a command's JSON.",
    },
    "Check": {
        "validate": "Check a file: ONNX rules, tags, the three stores, and who owns each node.",
        "verify": "Compare every module of a file with PyTorch, and say where errors come from.",
        "compare": "Compare two files: what was added, removed and changed in each module.",
    },
    "Change": {
        "extract": "Extract a module as an ONNX model of its own.",
        "tag": "Add the hierarchy to an ONNX file that another tool exported.",
        "retag": "Restore the hierarchy of a file that another tool rewrote.",
        "repair": "Restore missing stores of the hierarchy from those that are left.",
    },
}


class _LazyGroup(TyperGroup):
    """A group whose commands are imported when they run: help needs neither torch nor onnx."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for panel, commands in _COMMANDS.items():
            for name, line in commands.items():
                self.add_command(TyperCommand(name, help=line, rich_help_panel=panel))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command itself, in place of the line of help that stood for it."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, None if name is None or found is None else _load_command(name), rest

    def invoke(self, ctx: Any) -> Any:
        """Run a command. typer would end with code 130 and no message where the user interrupts it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Abort from error


def _load_command(name: str) -> Any:
    function = getattr(importlib.import_module(f"modelexport.cli.{name}"), name)
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    single.command(name, context_settings=_SETTINGS)(with_options(function))
    return typer.main.get_command(single)


app = typer.Typer(
    name="modelexport",
    cls=_LazyGroup,
    help="Export PyTorch models to ONNX with every node attributed to the module call it came from.",
    epilog="First steps: modelexport export builtin:bert-tiny bert.onnx, then modelexport tree bert.onnx",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=_SETTINGS,
)


def _show_version(value: bool) -> None:
    if value:
        versions = [f"modelexport {__version__}", *(f"{name} {_version(name)}" for name in _LIBRARIES)]
        typer.echo("\n".join(versions))
        raise typer.Exit


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "is not installed"


@app.callback()
def _common(
    version: bool = typer.Option(
        False,
        "--version",
        help="Print the versions of modelexport and of what it works with.",
        callback=_show_version,
        is_eager=True,
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    pass


def run() -> None:
    """Run the command line and exit: 0 good, 1 findings, 2 wrong use or bad input, 130 interrupted."""
    # Read here, because the error may come from a subcommand's own arguments.
    debug = "--debug" in sys.argv
    for stream in (sys.stdout, sys.stderr):
        # Names in a model may have letters that the terminal does not have.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # Its messages quote names of the model, escape sequences included.
    logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code)
    except (typer.Abort, KeyboardInterrupt):
        _end("interrupted: nothing was written", _INTERRUPTED, debug)
    except _USAGE_ERROR as error:
        _end(f"error: {error.format_message()} (see --help)", _BAD_INPUT, debug)
    except ModelExportError as error:
        _end(f"error: {error}", _BAD_INPUT, debug)
    except BrokenPipeError:
        _end_closed_pipe()
    except SystemExit as ended:
        # rich and typer turn a closed pipe into exit code 1, which is ours for findings.
        if isinstance(ended.__context__, BrokenPipeError):
            _end_closed_pipe()
        raise
    except OSError as error:
        # Help and completion are printed by typer itself.
        discard_stdout()
        _end(f"error: {error.strerror or error}", _BAD_INPUT, debug)


def _end(text: str, code: int, debug: bool) -> None:
    if debug:
        raise
    message(" ".join(text.split()))
    sys.exit(code)


def _end_closed_pipe() -> NoReturn:
    discard_stdout()
    sys.exit(_CLOSED_PIPE)
