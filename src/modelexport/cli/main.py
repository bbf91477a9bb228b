"""The `modelexport` command: the table of subcommands, and the one place that turns errors into messages."""

from __future__ import annotations

import io
import logging
import sys
from typing import Any

import typer

from modelexport._version import __version__
from modelexport.cli.analyze import analyze
from modelexport.cli.compare import compare
from modelexport.cli.export import export
from modelexport.cli.extract import extract
from modelexport.cli.inspect import inspect
from modelexport.cli.output import message_console, printable
from modelexport.cli.retag import retag
from modelexport.cli.schema import schema
from modelexport.cli.select import select
from modelexport.cli.tag import tag
from modelexport.cli.tree import tree
from modelexport.cli.validate import validate
from modelexport.cli.verify import verify
from modelexport.errors import ModelExportError

_BAD_INPUT = 2
_INTERRUPTED = 130
# typer gives no name to the base of its errors about arguments.
_USAGE_ERROR: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="modelexport",
    help="Export PyTorch models to ONNX with every node attributed to the module call it came from.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(export)
app.command()(inspect)
app.command()(tag)
app.command()(retag)
app.command()(tree)
app.command()(analyze)
app.command()(compare)
app.command()(select)
app.command()(extract)
app.command()(validate)
app.command()(verify)
app.command()(schema)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"modelexport {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=_show_version, is_eager=True
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    pass


def run() -> None:
    """Run the command line and exit: 0 good, 1 findings, 2 wrong use or bad input."""
    debug = "--debug" in sys.argv
    if debug:
        # Wherever it stands: the error may come from a subcommand's own arguments.
        sys.argv.remove("--debug")
    for stream in (sys.stdout, sys.stderr):
        # Names in a model may have letters that the terminal has not.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # It says in a model's own words, escape sequences and all, what is odd about the model.
    logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)
    try:
        sys.exit(app(standalone_mode=False))
    except (typer.Abort, KeyboardInterrupt):
        _end("interrupted: nothing was written", _INTERRUPTED, debug)
    except _USAGE_ERROR as error:
        _end(f"error: {error.format_message()} (see --help)", _BAD_INPUT, debug)
    except ModelExportError as error:
        _end(f"error: {error}", _BAD_INPUT, debug)
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        sys.stderr.close()
        sys.exit(0)


def _end(message: str, code: int, debug: bool) -> None:
    if debug:
        raise
    message_console().print(printable(" ".join(message.split())), markup=False)
    sys.exit(code)
