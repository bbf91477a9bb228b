"""`modelexport tag`: the hierarchy of an ONNX file that another tool made."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from modelexport.artifact import check_target
from modelexport.cli.model_options import ModelOption, ModelRequest, runs_file
from modelexport.cli.output import OutputFormat, print_json
from modelexport.cli.running import Progress, parse_exceptions, show_result, silence_libraries
from modelexport.errors import InputError


@runs_file
def tag(
    file: Annotated[Path, typer.Argument(help="An ONNX file, from whatever exporter.")],
    model: ModelOption,
    request: ModelRequest,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The .onnx file to write; by default FILE is replaced.")
    ] = None,
    torch_nn_exceptions: Annotated[
        str | None, typer.Option(help="torch.nn classes that show in tags: A,B,C, or all, or none.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    output_format: Annotated[
        OutputFormat, typer.Option("--format", help="For people or for programs.")
    ] = OutputFormat.HUMAN,
) -> None:
    """Tag an ONNX file that another tool made, by running it and the model once each.

    Every node is attributed to the module call that computes what it computes. The file's own content stays as it
    is. The model must have the weights that the file was exported with.

    Examples:

        modelexport tag plain.onnx --model my_package.models:make_net -o tagged.onnx

        modelexport tag optimized.onnx --model builtin:bert-tiny --force
    """
    # Found out before anything is loaded: a wrong path should not cost the time of a run.
    if not file.is_file():
        raise InputError(f"{file} is not a file: give the path of an ONNX model")
    check_target(file if output is None else output, force=force)
    request.check()
    from modelexport.tagging import tag_file

    silence_libraries()
    # What a factory or a forward prints is no result of ours.
    with contextlib.redirect_stdout(sys.stderr), Progress() as progress:
        sourced = request.load(model)
        result = tag_file(
            file,
            sourced.model,
            request.choose_inputs(model, sourced),
            output,
            torch_nn_exceptions=parse_exceptions(torch_nn_exceptions),
            overwrite=force,
            limits=request.limits,
            progress=progress,
        )
    if output_format is OutputFormat.JSON:
        print_json(result.as_dict())
    else:
        show_result(result)
