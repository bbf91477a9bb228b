"""`modelexport extract`: a module of an exported model, as a model of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from modelexport.artifact import check_target, sidecar_path
from modelexport.cli.output import OutputFormat, message_console, print_json, printable, result_console
from modelexport.errors import ExtractionError, InputError

if TYPE_CHECKING:
    from modelexport.analysis.extraction import Extractor
    from modelexport.analysis.submodel_description import DescribedSubmodel, ListedSubmodel, RefusedSubmodel

MANIFEST = "manifest.json"


def extract(
    file: Annotated[Path, typer.Argument(help="An ONNX file with its hierarchy.")],
    target: Annotated[
        str | None,
        typer.Argument(help="A module path, a call (blk@1), an alias, a tag, or a pattern that picks one call."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The .onnx file to write.")] = None,
    select: Annotated[str | None, typer.Option(help="Extract every call that this pattern picks.")] = None,
    output_dir: Annotated[
        Path | None, typer.Option(help="The folder for what --select picks; it is made if need be.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    output_format: Annotated[
        OutputFormat, typer.Option("--format", help="For people or for programs.")
    ] = OutputFormat.HUMAN,
) -> None:
    """Cut a module out of an exported model, as an ONNX model of its own.

    It takes the module's own arguments and gives the module's own results. What cannot be cut out (the optimizer fused
    it with its neighbours, say) is refused with the reason.

    Examples:

        modelexport extract bert.onnx encoder.layer.0 -o layer0.onnx

        modelexport extract net.onnx blk@1 -o second-call.onnx

        modelexport extract bert.onnx --select class:BertLayer --output-dir layers
    """
    if (target is None) == (select is None):
        raise InputError("give a TARGET to extract, or --select PATTERN for many: one of the two")
    if target is not None:
        if output is None:
            raise InputError("give the file to write: -o OUT.onnx")
        if output_dir is not None:
            raise InputError("--output-dir goes with --select: a single module is written to the file of -o")
        check_target(output, force=force)
        _extract_one(file, target, output, force, output_format)
        return
    if output_dir is None or output is not None:
        raise InputError("--select writes many files: give --output-dir DIR, and no -o")
    _extract_many(file, str(select), output_dir, force, output_format)


def _extract_one(file: Path, target: str, output: Path, force: bool, output_format: OutputFormat) -> None:
    from modelexport.analysis.extraction import Extractor
    from modelexport.analysis.submodel_description import WrittenSubmodel, describe_submodel
    from modelexport.analysis.submodel_file import write_submodel

    submodel = Extractor(file).extract(target)
    files = write_submodel(submodel, output, overwrite=force)
    described = describe_submodel(submodel)
    if output_format is OutputFormat.JSON:
        written = WrittenSubmodel(**msgspec.structs.asdict(described), files=tuple(str(path) for path in files))
        print_json(msgspec.to_builtins(written))
        return
    _show(described)
    for path in files:
        result_console().print(printable(f"wrote {path}"), markup=False)


def _extract_many(file: Path, pattern: str, folder: Path, force: bool, output_format: OutputFormat) -> None:
    from modelexport.analysis.extraction import Extractor
    from modelexport.analysis.selectors import select_calls
    from modelexport.analysis.submodel_description import Manifest, PrintedManifest, manifest_text
    from modelexport.analysis.submodel_file import file_names
    from modelexport.textfile import check_text_target, write_text

    extractor = Extractor(file)
    calls = [call.id for call in select_calls(extractor.document, pattern)]
    names = file_names(calls, file.stem)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Cannot make the folder {folder}: {error.strerror or error}. Choose another.") from error
    manifest = check_text_target(folder / MANIFEST, force=force)
    for name in names.values():
        # Found out before the first is written, so that nothing is left half done.
        taken = [path for path in (folder / name, sidecar_path(folder / name)) if path.exists()]
        if taken and not force:
            raise InputError(
                f"Cannot write {taken[0]}: it exists. Choose another folder, or use --force to replace it."
            )
    entries, refused = _write_all(extractor, names, folder, force)
    write_text(manifest, manifest_text(Manifest(tuple(entries), tuple(refused))))
    if output_format is OutputFormat.JSON:
        print_json(msgspec.to_builtins(PrintedManifest(tuple(entries), tuple(refused), manifest=str(manifest))))
    else:
        for entry in entries:
            _show(entry, entry.file)
        for reason in refused:
            line = f"{reason.call or '(root)'}: refused, {reason.explanation}"
            result_console().print(printable(line), markup=False)
        result_console().print(printable(f"{len(entries)} of {len(names)} extracted, see {manifest}"), markup=False)
    if refused:
        raise typer.Exit(1)


def _write_all(
    extractor: Extractor, names: dict[str, str], folder: Path, force: bool
) -> tuple[list[ListedSubmodel], list[RefusedSubmodel]]:
    from modelexport.analysis.submodel_description import ListedSubmodel, RefusedSubmodel, describe_submodel
    from modelexport.analysis.submodel_file import write_submodel

    entries: list[ListedSubmodel] = []
    refused: list[RefusedSubmodel] = []
    progress = message_console()
    for number, (call, name) in enumerate(names.items(), start=1):
        try:
            submodel = extractor.extract(call)
        except ExtractionError as error:
            refused.append(RefusedSubmodel(call, error.reason, error.explanation, error.fused_with, error.enclosing))
            continue
        write_submodel(submodel, folder / name, overwrite=force)
        entries.append(ListedSubmodel(**msgspec.structs.asdict(describe_submodel(submodel)), file=name))
        if progress.is_terminal:
            progress.print(printable(f"  {number}/{len(names)} {name}"), markup=False)
    return entries, refused


def _show(described: DescribedSubmodel, file: str = "") -> None:
    console = result_console()
    where = f" -> {file}" if file else ""
    lines = [f"{described.call or '(root)'}: {described.node_count} nodes{where}"]
    for side, ports in (("input", described.inputs), ("output", described.outputs)):
        for port in ports:
            shape = "x".join("?" if size is None else str(size) for size in port.shape or ())
            lines.append(f"  {side:6} {port.name}  {port.type or '?'} {shape}".rstrip())
    lines += [f"  note: {note}" for note in described.notes]
    for line in lines:
        console.print(printable(line), markup=False)
