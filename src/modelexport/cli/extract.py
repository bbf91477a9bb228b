"""`modelexport extract`: a module of an exported model, as a model of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from modelexport.cli.export_summary import shown_path
from modelexport.cli.options import ForceOption, SelectOption, option
from modelexport.cli.output import FINDINGS, ROOT, Format, FormatOption, Output, command_line, make_folder, stdout_width
from modelexport.cli.pages import wrapped
from modelexport.display import counted
from modelexport.errors import InputError

if TYPE_CHECKING:
    from modelexport.analysis.extraction import SubmodelSummary


def extract(
    *,
    file: Annotated[Path, typer.Argument(help="An ONNX file with its hierarchy.", show_default=False)],
    target: Annotated[
        str | None,
        typer.Argument(
            help="A module path, a call (blk@1), an alias, a tag, or a selector that picks one call.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        option("Output", "The .onnx file to write, or the folder of --select.", "--output", "-o"),
    ] = None,
    select: SelectOption = None,
    force: ForceOption = False,
    output_format: FormatOption = Format.HUMAN,
    out: Output,
) -> None:
    """Extract a module as an ONNX model of its own.

    Its inputs are the arguments of the module's forward, its outputs the results of forward. A module that cannot be
    extracted, for example because the optimizer fused it with its neighbors, is refused with the reason. --select
    extracts every call that a selector picks, and lists them in manifest.json.

    Examples:

        modelexport extract bert.onnx encoder.layer.0 -o layer0.onnx

        modelexport extract net.onnx blk@1 -o second-call.onnx

        modelexport extract bert.onnx --select class:BertLayer -o layers
    """
    if (target is None) == (select is None):
        raise InputError("give a TARGET to extract, or --select SELECTOR for many: one of the two")
    if output is None:
        raise InputError(f"give {'the file to write: -o OUT.onnx' if select is None else 'a folder: -o DIR'}")
    if target is not None:
        from modelexport.storage import check_target

        make_folder(output.parent)
        check_target(output, force=force)
        _extract_one(file, target, output, force, out, output_format)
    else:
        _extract_many(file, str(select), output, force, out, output_format)


def _extract_one(file: Path, target: str, output: Path, force: bool, out: Output, output_format: Format) -> None:
    from modelexport.analysis.extraction import Extractor, WrittenSubmodel, summarize_submodel, write_submodel

    with out.working(f"reading {file}"):
        submodel = Extractor(file).extract(target)
        files = write_submodel(submodel, output, overwrite=force)
    described = summarize_submodel(submodel)
    if output_format is Format.JSON:
        written = WrittenSubmodel(**msgspec.structs.asdict(described), files=tuple(str(path) for path in files))
        out.json(msgspec.to_builtins(written))
        return
    lines = [*_lines(described), *(f"wrote {shown_path(path)}" for path in files)]
    out.summary([*lines, f"next: {command_line('tree', shown_path(files[0]))}"])


def _extract_many(file: Path, selector: str, folder: Path, force: bool, out: Output, output_format: Format) -> None:
    from modelexport.analysis.extraction import extract_modules

    with out.working(f"extracting from {file}"):
        found = extract_modules(file, selector, folder, overwrite=force)
    if output_format is Format.JSON:
        out.json(msgspec.to_builtins(found))
    else:
        total = len(found.submodels) + len(found.refused)
        out.summary(
            [
                *(line for entry in found.submodels for line in _lines(entry, entry.file)),
                *(
                    line
                    for refused in found.refused
                    for line in _prose(f"{refused.call or ROOT}: refused, {refused.explanation}")
                ),
                f"{len(found.submodels)} of {total} extracted, see {shown_path(Path(found.manifest))}",
            ]
        )
    if found.refused:
        raise typer.Exit(FINDINGS)


def _lines(described: SubmodelSummary, file: str = "") -> list[str]:
    where = f" -> {file}" if file else ""
    lines = [f"{described.call or ROOT}: {counted(described.node_count, 'node')}{where}"]
    for side, ports in (("input", described.inputs), ("output", described.outputs)):
        for port in ports:
            shape = "x".join("?" if size is None else str(size) for size in port.shape or ())
            lines.append(f"  {side:6} {port.name}  {port.type or '?'} {shape}".rstrip())
    return [*lines, *(line for note in described.notes for line in _prose(f"note: {note}", indent=2))]


def _prose(text: str, indent: int = 0) -> list[str]:
    return wrapped(text, indent, stdout_width()).splitlines()
