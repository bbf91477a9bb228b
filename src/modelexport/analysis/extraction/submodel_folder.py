"""Extract many modules of one model, each to a file of one folder, with a manifest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from modelexport.analysis.extraction.extractor import Extractor, ModelSource
from modelexport.analysis.extraction.manifest import (
    ExtractedModules,
    ListedSubmodel,
    Manifest,
    RefusedSubmodel,
    manifest_text,
    summarize_submodel,
)
from modelexport.analysis.extraction.submodel_files import file_names, write_submodel
from modelexport.analysis.query import select_calls
from modelexport.errors import ExtractionError, InputError
from modelexport.storage import check_text_target, sidecar_path, stage_files

MANIFEST = "manifest.json"
# The nodes of all submodels together: those of nested calls repeat the nodes of the calls inside, to any depth.
_MOST_NODES = 10_000_000


def extract_modules(
    source: ModelSource, targets: str | Sequence[str], folder: str | Path, *, overwrite: bool = False
) -> ExtractedModules:
    """Extract many module calls, each to an ONNX file with its sidecar, and list them in ``manifest.json``.

    A call that cannot be extracted is listed with the reason. All files are written, or none.

    Args:
        source: A file, the result of `modelexport.load`, or the model itself.
        targets: A selector, which may pick many calls, or a list of targets that name one call each.
        folder: Where to write; it is created if needed.
        overwrite: Replace existing files.

    Raises:
        InputError: The source or the folder cannot be used, or a file exists.
        SelectorError: The selector cannot be read, or picks nothing.
        ExtractionError: A target in a list names no call, or several.
        FileFormatError: The source is not an ONNX model, or the sidecar is damaged.
        StorageError: The files could not be written.
    """
    if not isinstance(folder, str | Path):
        raise InputError(f"a folder is given by its path, not by {type(folder).__name__}")
    if not isinstance(targets, str | Sequence):
        raise InputError(f"give a selector or a list of targets, not {type(targets).__name__}")
    extractor = Extractor(source)
    if isinstance(targets, str):
        calls = [call.id for call in select_calls(extractor.document, targets)]
    else:
        calls = list(dict.fromkeys(extractor.find(target).id for target in targets))
    names = file_names(calls, Path(source).stem if isinstance(source, str | Path) else "model")
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Cannot create the folder {folder}: {error.strerror or error}. Choose another.") from error
    manifest = check_text_target(place / MANIFEST, force=overwrite)
    for name in names.values():
        taken = [path for path in (place / name, sidecar_path(place / name)) if path.exists()]
        if taken and not overwrite:
            raise InputError(
                f"Cannot write {taken[0]}: it exists. Choose another folder, or replace it: --force on the command "
                "line, overwrite=True in Python."
            )
    with stage_files(manifest, force=overwrite) as staging:
        staged = staging.path(MANIFEST).parent
        found = _write(extractor, names, staged)
        others = {file.name: manifest.with_name(file.name) for file in staged.iterdir() if file.name != MANIFEST}
        staging.commit(MANIFEST, None, others)
    return ExtractedModules(found.submodels, found.refused, manifest=str(manifest))


def _write(extractor: Extractor, names: dict[str, str], folder: Path) -> Manifest:
    written: list[ListedSubmodel] = []
    refused: list[RefusedSubmodel] = []
    nodes = 0
    records = {call.id: call for call in extractor.document.calls}
    for call, name in names.items():
        try:
            submodel = extractor.extract(records[call])
        except ExtractionError as error:
            refused.append(RefusedSubmodel(call, error.reason, error.explanation, error.fused_with, error.enclosing))
            continue
        nodes += len(submodel.document.nodes)
        if nodes > _MOST_NODES:
            raise InputError(
                f"Cannot extract so many calls at once: they have more than {_MOST_NODES:,} nodes. Select fewer."
            )
        write_submodel(submodel, folder / name)
        written.append(ListedSubmodel(**msgspec.structs.asdict(summarize_submodel(submodel)), file=name))
    found = Manifest(tuple(written), tuple(refused))
    (folder / MANIFEST).write_text(manifest_text(found), encoding="utf-8")
    return found
