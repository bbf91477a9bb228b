"""A finished ONNX file, whoever made it: read without metadata of ours, and written again with a hierarchy."""

from __future__ import annotations

import contextlib
import dataclasses
import filecmp
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from modelexport.errors import FileFormatError, InputError
from modelexport.graph import nodes_with_ids
from modelexport.hierarchy import HierarchyDocument, encode_document
from modelexport.storage import transaction
from modelexport.storage.metadata_stores import strip_hierarchy, write_stores
from modelexport.storage.opened_file import existing_file, read_proto


@dataclasses.dataclass(frozen=True)
class FinishedFile:
    """A file without metadata of ours: as it lies there, as a graph, and the data files to write along with it."""

    path: Path
    proto: onnx.ModelProto
    graph: ir.Model
    moved: dict[Path, Path]

    @property
    def producer(self) -> str:
        """Who says to have made it."""
        return f"{self.proto.producer_name} {self.proto.producer_version}".strip() or "unknown"


def read_finished(onnx_path: str | Path, target: Path, *, overwrite: bool) -> FinishedFile:
    """Read a file that is to be written to `target` with a hierarchy.

    Raises:
        InputError: There is no such file, or its data files cannot go where `target` is.
        FileFormatError: It is not an ONNX model, or does what no model should.
        StorageError: `target` or a data file beside it cannot be written.
    """
    path = existing_file(onnx_path)
    proto = strip_hierarchy(read_proto(path, weights=True))
    try:
        graph = ir.from_proto(proto)
        ir.external_data.set_base_dir(graph.graph, path.parent)
    except Exception as error:
        raise FileFormatError(f"{path} cannot be read as an ONNX model: {type(error).__name__}: {error}") from error
    moved = _files_to_place(_data_files(graph, path), target, path)
    transaction.check_target(target, force=overwrite, others=list(moved.values()))
    return FinishedFile(path, proto, graph, moved)


def write_finished(
    file: FinishedFile, document: HierarchyDocument, target: Path, *, overwrite: bool
) -> tuple[Path, ...]:
    """Write the file with the document in all three stores; gives the paths of what was written.

    Raises:
        StorageError: Something could not be written; what was there before is as it was.
    """
    write_stores(file.proto, document)
    sidecar = transaction.sidecar_path(target)
    with transaction.stage_files(target, force=overwrite) as staging:
        staging.path(target.name).write_bytes(file.proto.SerializeToString())
        staging.path(sidecar.name).write_bytes(encode_document(document))
        for path, final in file.moved.items():
            _copy(path, staging.path(final.name), is_in_place=path == final)
        others = {final.name: final for final in (sidecar, *file.moved.values())}
        return staging.commit(target.name, None, others)


def _data_files(graph: ir.Model, file: Path) -> dict[str, Path]:
    """The files that hold tensors of the model, by the location that it names.

    Raises:
        FileFormatError: A location that is no file, or leads outside the model's folder.
    """
    found: dict[str, Path] = {}
    for tensor in _tensors(graph):
        if isinstance(tensor, ir.ExternalTensor) and tensor.location not in found:
            location = str(tensor.location)
            path = (file.parent / location).resolve()
            if not path.is_relative_to(file.parent):
                raise FileFormatError(
                    f"{file} reads weights from {location!r}, outside its folder: that is not followed"
                )
            if not path.is_file():
                raise FileFormatError(f"{file} reads weights from {location!r}, and there is no such file beside it")
            found[location] = path
    return found


def _tensors(model: ir.Model) -> Iterator[object]:
    graphs = {model.graph}
    for _, node in nodes_with_ids(model):
        if node.graph is not None and isinstance(node.graph, ir.Graph):
            graphs.add(node.graph)
        for attribute in node.attributes.values():
            if attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.TENSOR:
                # Not `as_tensor`, whose check of the type asks tensors of no known type for their size.
                yield attribute.value
            elif attribute.type == ir.AttributeType.TENSORS:
                yield from attribute.value
    for graph in graphs:
        yield from (value.const_value for value in graph.initializers.values())


def _files_to_place(data_files: dict[str, Path], target: Path, file: Path) -> dict[Path, Path]:
    """For each data file that has to be written with the tagged one, where it goes.

    Raises:
        InputError: It lies in a folder of its own, which another folder may not have.
    """
    moved: dict[Path, Path] = {}
    for location, path in data_files.items():
        final = target.parent / location
        # A commit removes data files of earlier exports to its target, by their names: this one is still in use.
        is_like_ours = location.startswith(f"{target.stem}-") and location.endswith(f"{target.suffix}.data")
        if final.is_file() and not is_like_ours and (final.samefile(path) or filecmp.cmp(path, final, shallow=False)):
            continue
        if Path(location).name != location:
            raise InputError(
                f"the weights of {file} lie in {location}, in a folder of their own: write the tagged file into "
                f"{file.parent}, beside that folder"
            )
        moved[path] = final
    return moved


def _copy(path: Path, staged: Path, *, is_in_place: bool) -> None:
    if is_in_place:
        with contextlib.suppress(OSError):  # no hard links on this file system
            os.link(path, staged)
            return
    shutil.copyfile(path, staged)
