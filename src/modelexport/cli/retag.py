"""`modelexport retag`: the hierarchy of a model that another tool has rewritten."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from modelexport.analysis.feeds import fill_shapes
from modelexport.analysis.retagging import RetagReport
from modelexport.analysis.retagging import retag as retag_file
from modelexport.artifact import check_target
from modelexport.cli.model_options import (
    DEFAULT_MEMORY_LIMIT,
    DEFAULT_TIMEOUT,
    MemoryLimitOption,
    TimeoutOption,
    run_limits,
)
from modelexport.cli.output import OutputFormat, message_console, print_json, printable, result_console, working
from modelexport.errors import InputError
from modelexport.given_inputs import read_arrays

# Where less than this part of the tensors kept its name, names are not what tells tensors apart.
_FEW_KEPT = 0.25


def retag(
    file: Annotated[Path, typer.Argument(help="An ONNX file that an optimizer, quantizer or converter wrote.")],
    tagged: Annotated[Path, typer.Option("--from", help="The file it was made of, with its hierarchy.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The .onnx file to write; by default FILE is replaced.")
    ] = None,
    by_value: Annotated[
        bool, typer.Option("--by-value", help="Know tensors by what they hold, not by name: runs both files once.")
    ] = False,
    input_shape: Annotated[
        list[str] | None,
        typer.Option(help="For --by-value, an input as name=1x16 or name=1x16:int64; repeat for more."),
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(help="For --by-value, an .npz file with the inputs by name; made up without.")
    ] = None,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    memory_limit: MemoryLimitOption = DEFAULT_MEMORY_LIMIT,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    output_format: Annotated[
        OutputFormat, typer.Option("--format", help="For people or for programs.")
    ] = OutputFormat.HUMAN,
) -> None:
    """Carry the hierarchy of a model onto what another tool made of it.

    Optimizers and quantizers drop metadata, fuse nodes and write new ones. Tensors that both graphs have tell which
    module calls each node now works for; a fused node lists them all. Where a tool has renamed the tensors too,
    --by-value runs both files in onnxruntime and knows tensors by what they hold.

    Examples:

        modelexport retag optimized.onnx --from model.onnx -o optimized-tagged.onnx

        modelexport retag quantized.onnx --from model.onnx --force

        modelexport retag renamed.onnx --from model.onnx --by-value -o renamed-tagged.onnx
    """
    for path in (file, tagged):
        if not path.is_file():
            raise InputError(f"{path} is not a file: give the path of an ONNX model")
    if inputs is not None and input_shape:
        raise InputError("--inputs and --input-shape both give example inputs: use one of them")
    if not by_value and (inputs is not None or input_shape):
        raise InputError("--inputs and --input-shape are what --by-value runs the files on: give it too")
    check_target(file if output is None else output, force=force)
    given = read_arrays(inputs) if inputs is not None else fill_shapes(input_shape) if input_shape else None
    with working("running both files" if by_value else f"reading {file}"):
        report = retag_file(
            file,
            tagged,
            output,
            overwrite=force,
            by_value=by_value,
            inputs=given,
            limits=run_limits(timeout, memory_limit),
        )
    if output_format is OutputFormat.JSON:
        print_json(report.as_dict())
    else:
        _show(report)
    if not by_value and report.tensors_kept < _FEW_KEPT * report.tensors_before:
        note = "few tensors kept their names; where a tool renames them, --by-value knows them by what they hold"
        message_console().print(f"note: {note}", markup=False)


def _show(report: RetagReport) -> None:
    kinds = f"{report.exact} exact, {report.projected} projected, {report.inferred} inferred"
    lines = [
        f"{len(report.document.nodes)} nodes: {kinds}",
        f"{report.tensors_kept} of {report.tensors_before} tensors are still there"
        + (", known by value" if report.by_value else ""),
        *(f"wrote {path}" for path in report.files),
    ]
    for line in lines:
        result_console().print(printable(line), markup=False)
