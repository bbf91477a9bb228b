"""`modelexport inspect`: what a model is like, and which strategies would be tried for it."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from typing import Annotated

import msgspec
import typer

from modelexport.cli.model_options import ModelArgument, ModelRequest, loads_model
from modelexport.cli.output import OutputFormat, print_json, printable, result_console


@loads_model
def inspect(
    model: ModelArgument,
    request: ModelRequest,
    output_format: Annotated[
        OutputFormat, typer.Option("--format", help="For people or for programs.")
    ] = OutputFormat.HUMAN,
) -> None:
    """Show what a model is like, and which strategies an export would try, in order and why.

    Examples:

        modelexport inspect builtin:bert-tiny

        modelexport inspect my_package.models:make_net --format json
    """
    from modelexport.strategies.overview import overlook

    # What a factory prints is no result of ours.
    with contextlib.redirect_stdout(sys.stderr):
        module = request.load(model).model
    found = overlook(model, module)
    if output_format is OutputFormat.JSON:
        print_json(msgspec.to_builtins(found))
        return
    console = result_console()
    for name, value in dataclasses.asdict(found.characteristics).items():
        shown = ", ".join(value) if isinstance(value, tuple) else f"{value:,}" if type(value) is int else value
        console.print(f"{name.replace('_', ' '):22} {printable(str(shown))}", markup=False)
    for number, candidate in enumerate(found.candidates, start=1):
        text = f"{number}. {candidate.strategy} ({candidate.exporter}): {candidate.reason}"
        console.print(printable(text), markup=False)
