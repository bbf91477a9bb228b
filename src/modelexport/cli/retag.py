"""`modelexport retag`: the hierarchy of a model that another tool has rewritten."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from modelexport.analysis.retagging import retag as retag_file
from modelexport.artifact import check_target
from modelexport.cli.output import OutputFormat, print_json, printable, result_console
from modelexport.errors import InputError


def retag(
    file: Annotated[Path, typer.Argument(help="An ONNX file that an optimizer, quantizer or converter wrote.")],
    tagged: Annotated[Path, typer.Option("--from", help="The file it was made of, with its hierarchy.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The .onnx file to write; by default FILE is replaced.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    output_format: Annotated[
        OutputFormat, typer.Option("--format", help="For people or for programs.")
    ] = OutputFormat.HUMAN,
) -> None:
    """Carry the hierarchy of a model onto what another tool made of it.

    Optimizers and quantizers drop metadata, fuse nodes and write new ones. Tensors that both graphs have tell which
    module calls each node now works for; a fused node lists them all.

    Examples:

        modelexport retag optimized.onnx --from model.onnx -o optimized-tagged.onnx

        modelexport retag quantized.onnx --from model.onnx --force
    """
    for path in (file, tagged):
        if not path.is_file():
            raise InputError(f"{path} is not a file: give the path of an ONNX model")
    check_target(file if output is None else output, force=force)
    report = retag_file(file, tagged, output, overwrite=force)
    if output_format is OutputFormat.JSON:
        print_json(report.as_dict())
        return
    console = result_console()
    kinds = f"{report.exact} exact, {report.projected} projected, {report.inferred} inferred"
    lines = [
        f"{len(report.document.nodes)} nodes: {kinds}",
        f"{report.tensors_kept} of {report.tensors_before} tensors are still there",
        *(f"wrote {path}" for path in report.files),
    ]
    for line in lines:
        console.print(printable(line), markup=False)
