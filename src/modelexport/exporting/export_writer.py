"""Writes a tagged model to its files: the graph, a separate file of large weights, and the sidecar."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch

from modelexport.errors import ContractError
from modelexport.graph import weight_bytes
from modelexport.hierarchy import HierarchyDocument, encode_document
from modelexport.storage import (
    ExporterFile,
    Staging,
    data_file_name,
    external_tensors,
    save_inline,
    sidecar_path,
    stage_files,
)

# Larger weights go to a separate file unless the caller says otherwise: protobuf files are limited to 2 GB.
_EXTERNAL_DATA_BYTES = 2**30
# Larger weights always go to a separate file, as in torch: the graph has to fit into the 2 GB too.
_MAX_INLINE_BYTES = 3 * 2**29
# Tensors in a shared file begin at pages, so that a runtime can map them into memory.
_ALIGNMENT = 4096


@dataclasses.dataclass(frozen=True)
class StagedExport:
    """A model written to a temporary folder beside its target.

    Attributes:
        path: The file there.
    """

    path: Path
    _target: Path
    _staging: Staging
    _data_name: str | None

    def write_sidecar(self, document: HierarchyDocument) -> None:
        """Write the document beside the model."""
        sidecar_path(self.path).write_bytes(encode_document(document))

    def commit(self) -> tuple[Path, ...]:
        """Move all files to their final paths at once, and return these.

        Raises:
            StorageError: The files could not be written.
        """
        sidecar = sidecar_path(self._target)
        return self._staging.commit(self._target.name, self._data_name, {sidecar.name: sidecar})


@contextlib.contextmanager
def staged_export(
    model: ir.Model | onnx.ModelProto,
    file: ExporterFile | None,
    target: Path,
    *,
    external_data: bool | None,
    overwrite: bool,
    options: Mapping[str, Any],
) -> Iterator[StagedExport]:
    """Write a model to a temporary folder; without a commit, nothing of it stays.

    Args:
        model: The model; with `file`, the skeleton of that file.
        file: The exporter's own file, where its bytes cannot be written from the graph.
        target: The path of the graph; the other files are next to it.
        external_data: Store weights in a separate file; None does so only where their size requires it.
        overwrite: Replace existing files.
        options: The arguments of `torch.onnx.export`, some of which concern the file.

    Raises:
        StorageError: The files could not be written.
    """
    with stage_files(target, force=overwrite) as staging:
        path = staging.path(target.name)
        if isinstance(model, ir.Model):
            _write_model(model, path, external_data, options)
        elif file is not None:
            _write_file(model, file, path, external_data)
        else:
            raise ContractError("a model skeleton without the exporter's file: please report this")
        yield StagedExport(path, target, staging, _name_data_file(path, target))


def _write_model(model: ir.Model, path: Path, external_data: bool | None, options: Mapping[str, Any]) -> None:
    size = weight_bytes(model)
    included = options.get("export_params", True)
    as_inputs = options.get("keep_initializers_as_inputs", False)
    if external_data is None:
        external_data = size > _EXTERNAL_DATA_BYTES
    if included and not as_inputs and not external_data and size <= _MAX_INLINE_BYTES:
        save_inline(model, path)
        return
    torch.onnx.ONNXProgram(model, None).save(
        path,
        include_initializers=included,
        keep_initializers_as_inputs=as_inputs,
        external_data=external_data,
    )


def _write_file(skeleton: onnx.ModelProto, file: ExporterFile, path: Path, external_data: bool | None) -> None:
    """Write the exporter's own file with its nodes tagged, and large weights to a separate file."""
    with path.open("wb") as opened:
        opened.writelines(file.pieces(skeleton))
    if external_data or (external_data is None and file.size > _EXTERNAL_DATA_BYTES):
        proto = onnx.load_model(path)
        onnx.save_model(proto, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)


def share_data_file(folder: Path, models: Sequence[str], target: Path) -> str | None:
    """Move the external data of several models to one file, each tensor once.

    Args:
        folder: The folder with the models and their data files, which are removed.
        models: The names of the models.
        target: The file is named after this path and its content.

    Returns:
        The name of the file; None where no model has external data.
    """
    shared = folder / f"{target.name}.data"
    places: dict[bytes, int] = {}
    used: set[Path] = set()
    with shared.open("wb") as file:
        for name in models:
            proto = onnx.load_model(folder / name, load_external_data=False)
            for _, tensor in external_tensors(proto):
                found = {entry.key: entry.value for entry in tensor.external_data}
                path = folder / found["location"]
                used.add(path)
                with path.open("rb") as source:
                    source.seek(int(found.get("offset", 0)))
                    content = source.read(int(found.get("length", -1)))
                digest = hashlib.sha256(content).digest()
                if digest not in places:
                    file.seek(-file.tell() % _ALIGNMENT, os.SEEK_CUR)
                    places[digest] = file.tell()
                    file.write(content)
                _set_place(tensor, shared.name, places[digest], len(content))
            (folder / name).write_bytes(proto.SerializeToString())
    for data in used:
        data.unlink()
    if not places:
        shared.unlink()
        return None
    return _named_after_content(shared, [folder / name for name in models], target)


def _set_place(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def _name_data_file(staged: Path, target: Path) -> str | None:
    """Rename the data file that torch wrote after its content, in the model too; returns the new name.

    So a graph never reads the weights of another export. A data file that no tensor uses is removed: torch writes an
    empty one for a model whose weights are all small enough to be inline.
    """
    written = staged.with_name(f"{staged.name}.data")
    if not written.exists():
        return None
    if not any(external_tensors(onnx.load_model(staged, load_external_data=False))):
        written.unlink()
        return None
    return _named_after_content(written, [staged], target)


def _named_after_content(written: Path, models: Sequence[Path], target: Path) -> str:
    with written.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    name = data_file_name(target, digest)
    written.rename(written.with_name(name))
    for model in models:
        proto = onnx.load_model(model, load_external_data=False)
        for _, tensor in external_tensors(proto):
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = name
        model.write_bytes(proto.SerializeToString())
    return name
