"""An ONNX file from any exporter, read without our metadata and written again with a hierarchy."""

from __future__ import annotations

import contextlib
import dataclasses
import filecmp
import os
import shutil
from pathlib import Path

import onnx
import onnx_ir as ir

from modelexport.errors import FileFormatError, InputError
from modelexport.hierarchy import HierarchyDocument, encode_document
from modelexport.storage import transaction
from modelexport.storage.metadata_stores import remove_hierarchy, write_stores
from modelexport.storage.opened_file import ModelFile
from modelexport.storage.untrusted_checks import external_tensors


@dataclasses.dataclass(frozen=True)
class UntaggedFile:
    """A model without our metadata, and the external data files to copy when it is written.

    Attributes:
        path: The file that was read.
        proto: The model without our metadata.
        graph: The same model as onnx_ir has it.
        copies: Each data file to copy, with its new path.
    """

    path: Path
    proto: onnx.ModelProto
    graph: ir.Model
    copies: dict[Path, Path]

    @property
    def producer(self) -> str:
        """The exporter that the file names."""
        return f"{self.proto.producer_name} {self.proto.producer_version}".strip() or "unknown"


def read_untagged(onnx_path: str | Path, target: Path, *, overwrite: bool) -> UntaggedFile:
    """Read a file that will be written to `target` with a hierarchy.

    Raises:
        InputError: The file does not exist, or its data files cannot be copied to the folder of `target`.
        FileFormatError: It is not an ONNX model, exceeds a limit, or its data files cannot be used.
        StorageError: `target` or a data file beside it cannot be written.
    """
    file = ModelFile(onnx_path, weights=True)
    remove_hierarchy(file.proto)
    copies = _files_to_copy(_data_files(file.proto, file.path), target, file.path)
    transaction.check_target(target, force=overwrite, others=list(copies.values()))
    return UntaggedFile(file.path, file.proto, file.model, copies)


def write_tagged(file: UntaggedFile, document: HierarchyDocument, target: Path, *, overwrite: bool) -> tuple[Path, ...]:
    """Write the file with the document in all three stores; returns the paths of the written files.

    Raises:
        StorageError: A file could not be written; the previous files are unchanged.
    """
    write_stores(file.proto, document)
    sidecar = transaction.sidecar_path(target)
    with transaction.stage_files(target, force=overwrite) as staging:
        staging.path(target.name).write_bytes(file.proto.SerializeToString())
        staging.path(sidecar.name).write_bytes(encode_document(document))
        for path, final in file.copies.items():
            _copy(path, staging.path(final.name), is_in_place=path == final)
        others = {final.name: final for final in (sidecar, *file.copies.values())}
        return staging.commit(target.name, None, others)


def _data_files(proto: onnx.ModelProto, file: Path) -> dict[str, Path]:
    """The external data files of the model, by the location that it names.

    Raises:
        FileFormatError: A location is not a file, or is outside the model's folder.
    """
    found: dict[str, Path] = {}
    for _, tensor in external_tensors(proto):
        location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        if location in found:
            continue
        path = (file.parent / location).resolve()
        if not path.is_relative_to(file.parent):
            raise FileFormatError(f"{file} reads weights from {location!r}, outside its folder: that is not followed")
        if not path.is_file():
            raise FileFormatError(f"{file} reads weights from {location!r}, which does not exist")
        found[location] = path
    return found


def _files_to_copy(data_files: dict[str, Path], target: Path, file: Path) -> dict[Path, Path]:
    """Each data file to write together with the tagged file, with its new path.

    Raises:
        InputError: A data file is in a subfolder, and `target` is in another folder.
    """
    copies: dict[Path, Path] = {}
    for location, path in data_files.items():
        final = target.parent / location
        # A commit removes data files of earlier exports by the pattern of their names, which this file may match.
        is_like_ours = location.startswith(f"{target.stem}-") and location.endswith(f"{target.suffix}.data")
        if final.is_file() and not is_like_ours and (final.samefile(path) or filecmp.cmp(path, final, shallow=False)):
            continue
        if Path(location).name != location:
            raise InputError(
                f"the weights of {file} are in {location}, in a subfolder: write the tagged file to {file.parent}"
            )
        copies[path] = final
    return copies


def _copy(path: Path, staged: Path, *, is_in_place: bool) -> None:
    if is_in_place:
        with contextlib.suppress(OSError):  # no hard links on this file system
            os.link(path, staged)
            return
    shutil.copyfile(path, staged)
