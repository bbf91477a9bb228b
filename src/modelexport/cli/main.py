"""The `modelexport` command: the table of subcommands, and the conversion of errors to messages."""

from __future__ import annotations

import importlib
import importlib.metadata
import io
import logging
import sys
import traceback
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from modelexport._version import __version__
from modelexport.cli.options import with_options
from modelexport.cli.output import discard_stdout, message
from modelexport.display import shortened
from modelexport.errors import ModelExportError

_BAD_INPUT = 2
_LONGEST_NAME = 80
_INTERRUPTED = 130
_INTERRUPTED_TEXT = "interrupted: nothing was written"
# The exit code of a program that wrote to a closed pipe: 128 plus the number of SIGPIPE.
_CLOSED_PIPE = 141
# typer does not export the base class of its usage errors.
_USAGE_ERROR: Any = typer.BadParameter.__base__
_SETTINGS = {"help_option_names": ["-h", "--help"]}
_LIBRARIES = ("torch", "onnx", "onnxruntime", "transformers")

# The commands by help panel. A name is also that of the module and the function; the text is the first line of help.
# Modules are imported only when their command runs.
_COMMANDS = {
    "Export": {
        "export": "Export a model to ONNX with every node attributed to the module call it came from.",
        "inspect": "Show the characteristics of a model, and the strategies that an export would try.",
    },
    "Batches": {
        "batch": "Export many models in parallel, each in a process of its own, and record every attempt.",
        "catalog": "Show what a batch did: which jobs failed and why, and what changed.",
        "cache": "Show what the cache of batches has, or remove what is old or unused.",
    },
    "Query": {
        "tree": "Show the module tree of a file with node and parameter counts.",
        "analyze": "Count the nodes, operators and parameters of a file, by module and by class.",
        "select": "List the nodes that a selector picks, in the format of other tools.",
        "view": "Show a file in the browser: modules first, nodes on demand, with everything that is known about them.",
        "profile": "Show which modules are slow, large, or on another device.",
        "schema": "Print the JSON Schema of the sidecar file or of a command's JSON.",
    },
    "Check": {
        "validate": "Check a file: ONNX validity, tags, the three stores, and the owner of each node.",
        "verify": "Compare every module of a file with PyTorch, and locate the source of errors.",
        "compare": "Compare two files: the nodes added, removed and changed in each module.",
    },
    "Change": {
        "extract": "Extract a module as an ONNX model of its own.",
        "tag": "Add the hierarchy to an ONNX file that another tool exported.",
        "retag": "Restore the hierarchy of a file that another tool rewrote.",
        "repair": "Restore missing stores of the hierarchy from the others.",
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
        """Import the command that replaces the placeholder with its line of help."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, None if name is None or found is None else _load_command(name), rest


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
        help="Print the versions of modelexport and of the libraries it uses.",
        callback=_show_version,
        is_eager=True,
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    pass


def run() -> None:
    """Run the command line and exit: 0 success, 1 findings, 2 usage error or bad input, 130 interrupted."""
    # Read here: parsing a subcommand's arguments can fail.
    debug = "--debug" in sys.argv
    for stream in (sys.stdout, sys.stderr):
        # Names in a model can have characters that the encoding of the terminal does not have.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # Its messages contain names from the model, escape sequences included.
    logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)
    try:
        code = app(standalone_mode=False)
        if code == _INTERRUPTED:
            # typer catches most interrupts, and prints nothing.
            _end(_INTERRUPTED_TEXT, code, debug=False)
        sys.stdout.flush()
        sys.exit(code)
    except (typer.Abort, KeyboardInterrupt):
        _end(_INTERRUPTED_TEXT, _INTERRUPTED, debug)
    except _USAGE_ERROR as error:
        _end(f"error: {error.format_message()} (see --help)", _BAD_INPUT, debug)
    except ModelExportError as error:
        _end(f"error: {error}", _BAD_INPUT, debug)
    except BrokenPipeError:
        _end_closed_pipe()
    except SystemExit as ended:
        # rich and typer convert a closed pipe to exit code 1, our code for findings.
        if isinstance(ended.__context__, BrokenPipeError):
            _end_closed_pipe()
        raise
    except OSError as error:
        # Help and completion are printed by typer itself.
        discard_stdout()
        named = f"{shortened(str(error.filename), _LONGEST_NAME)}: " if error.filename else ""
        _end(f"error: {named}{error.strerror or error}", _BAD_INPUT, debug)


def _end(text: str, code: int, debug: bool) -> NoReturn:
    if debug:
        for line in traceback.format_exc().splitlines():
            message(line)
    else:
        message(" ".join(text.split()))
    sys.exit(code)


def _end_closed_pipe() -> NoReturn:
    discard_stdout()
    sys.exit(_CLOSED_PIPE)
