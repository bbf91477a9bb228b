"""The `modelexport` command: the table of subcommands, and the one place that turns errors into messages."""

from __future__ import annotations

import sys

import typer

from modelexport._version import __version__
from modelexport.cli.export import export
from modelexport.cli.inspect import inspect
from modelexport.cli.output import message_console, printable
from modelexport.cli.schema import schema
from modelexport.cli.tree import tree
from modelexport.errors import ModelExportError

_BAD_INPUT = 2
_INTERRUPTED = 130

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
app.command()(tree)
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
    try:
        app()
    except ModelExportError as error:
        if debug:
            raise
        message_console().print(f"error: {printable(' '.join(str(error).split()))}", markup=False)
        sys.exit(_BAD_INPUT)
    except KeyboardInterrupt:
        if debug:
            raise
        message_console().print("interrupted: nothing was written", markup=False)
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        sys.stderr.close()
        sys.exit(0)
