"""`modelexport repair`: restore missing stores of the hierarchy from the others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from modelexport.cli.export_summary import shown_path
from modelexport.cli.output import Format, FormatOption, Output, command_line
from modelexport.cli.written_file import WrittenFile


def repair(
    *,
    file: Annotated[Path, typer.Argument(help="An ONNX file that modelexport wrote.", show_default=False)],
    output_format: FormatOption = Format.HUMAN,
    target: WrittenFile,
    out: Output,
) -> None:
    """Restore missing stores of the hierarchy from the others.

    The source is the sidecar, if it describes this graph. Otherwise it is the metadata of the nodes.

    Examples:

        modelexport repair model.onnx --force

        modelexport repair model.onnx -o repaired.onnx
    """
    target.check(file)
    from modelexport.analysis.validation import repair as repair_file

    with out.working(f"reading {file}"):
        report = repair_file(file, target.output, overwrite=target.force)
    if output_format is Format.JSON:
        out.json(report.as_dict())
        return
    out.summary(
        [
            f"repaired from the {report.origin}",
            *(f"missing: {missing}" for missing in report.missing),
            *(f"wrote {shown_path(path)}" for path in report.files),
            f"next: {command_line('validate', shown_path(report.files[0]))}",
        ]
    )
