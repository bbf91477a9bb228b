"""`modelexport retag`: restore the hierarchy of a file that another tool rewrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modelexport.cli.export_summary import shown_path
from modelexport.cli.model_options import RunLimitOptions
from modelexport.cli.output import Format, FormatOption, Output, command_line
from modelexport.cli.written_file import WrittenFile
from modelexport.display import counted
from modelexport.errors import InputError

if TYPE_CHECKING:
    from modelexport.analysis.retagging import RetagReport

# If a smaller fraction of tensors kept their names, the tool probably renamed them.
_LOW_KEPT_FRACTION = 0.25


def retag(
    *,
    file: Annotated[
        Path,
        typer.Argument(help="An ONNX file that an optimizer, quantizer or converter wrote.", show_default=False),
    ],
    tagged: Annotated[Path, typer.Option("--from", help="The file it was created from, with its hierarchy.")],
    by_value: Annotated[
        bool, typer.Option("--by-value", help="Match tensors by value, not by name: runs both files once.")
    ] = False,
    input_shape: Annotated[
        list[str] | None,
        typer.Option(help="For --by-value, an input as name=1x16 or name=1x16:int64; repeat for more."),
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(help="For --by-value, an .npz file with the inputs by name; synthesized by default.")
    ] = None,
    limits: RunLimitOptions,
    output_format: FormatOption = Format.HUMAN,
    target: WrittenFile,
    out: Output,
) -> None:
    """Restore the hierarchy of a file that another tool rewrote.

    Optimizers and quantizers drop metadata, fuse nodes and add new ones. The owners follow from the tensors that both
    graphs have; a fused node lists all its module calls. If a tool renamed the tensors too, --by-value runs both files
    in onnxruntime and matches tensors by value.

    Examples:

        modelexport retag optimized.onnx --from model.onnx -o optimized-tagged.onnx

        modelexport retag quantized.onnx --from model.onnx --force

        modelexport retag renamed.onnx --from model.onnx --by-value -o renamed-tagged.onnx
    """
    if not tagged.is_file():
        raise InputError(f"{tagged} is not a file: give the path of an ONNX model")
    if inputs is not None and input_shape:
        raise InputError("--inputs and --input-shape both give example inputs: use one of them")
    if not by_value and (inputs is not None or input_shape):
        raise InputError("--inputs and --input-shape are only for --by-value: give it too")
    target.check(file)
    from modelexport.analysis.retagging import fill_shapes
    from modelexport.analysis.retagging import retag as retag_file
    from modelexport.input_options import read_arrays

    given = read_arrays(inputs) if inputs is not None else fill_shapes(input_shape) if input_shape else None
    with out.working("running both files" if by_value else f"reading {file}"):
        report = retag_file(
            file,
            tagged,
            target.output,
            overwrite=target.force,
            by_value=by_value,
            inputs=given,
            limits=limits.limits,
        )
    if output_format is Format.JSON:
        out.json(report.as_dict())
    else:
        out.summary(_lines(report, tagged))
    for note in report.notes:
        out.note(f"note: {note}")
    if not by_value and report.tensors_kept < _LOW_KEPT_FRACTION * report.tensors_before:
        out.note("note: few tensors kept their names; if the tool renamed them, --by-value matches them by value")


def _lines(report: RetagReport, tagged: Path) -> list[str]:
    kinds = f"{report.exact:,} exact, {report.projected:,} projected, {report.inferred:,} inferred"
    by_value = ", matched by value" if report.by_value else ""
    return [
        f"{counted(len(report.document.nodes), 'node')}: {kinds}",
        f"{report.tensors_kept:,} of {report.tensors_before:,} tensors were kept{by_value}",
        *(f"wrote {shown_path(path)}" for path in report.files),
        f"next: {command_line('compare', tagged, shown_path(report.files[0]))}",
    ]
