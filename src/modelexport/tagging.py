"""tag_file: the hierarchy of a finished ONNX file, whoever made it, from the model that it was made of."""

from __future__ import annotations

import contextlib
import dataclasses
import filecmp
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import onnx
import onnx_ir as ir
import torch

from modelexport import artifact
from modelexport.capture.diagnosis import check_signature
from modelexport.capture.inputs import normalize_inputs
from modelexport.capture.module_tree import read_module_tree
from modelexport.capture.preserve import TURN, evaluation_mode, preserved_state
from modelexport.capture.usage import STRATEGY, Usage, attribute_by_usage, require_onnxruntime
from modelexport.carriers import strip_hierarchy, write_stores
from modelexport.document import HierarchyDocument, build_document, encode_document
from modelexport.errors import FileFormatError, InputError
from modelexport.graph import graph_hash, identified_nodes
from modelexport.hierarchy import ModuleTree
from modelexport.loading import load
from modelexport.pipeline import Observer, Pipeline
from modelexport.result import AttemptReport, ExportResult
from modelexport.tags import TagView

STEPS = ("check", "read", "run", "document", "write")


def tag_file(
    onnx_path: str | Path,
    model: torch.nn.Module,
    example_inputs: object,
    output_path: str | Path | None = None,
    *,
    torch_nn_exceptions: Iterable[str] | str | None = None,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    training: bool = False,
    overwrite: bool = True,
    progress: Observer | None = None,
) -> ExportResult:
    """Tag an ONNX file that another tool made: every node with the module call that computes what it computes.

    The model and the file run once each on the example inputs; what they compute is matched by value. The file's own
    content stays as it is: take our metadata away with `strip_hierarchy`, and it is the file that was given. Weights
    in files of their own stay there, and are copied along where the output goes to another folder.

    Args:
        onnx_path: The file.
        model: The model it was exported from, with the same weights.
        example_inputs: A tensor, a tuple or list of positional arguments, or a dict of keyword arguments.
        output_path: Where to write the tagged file; None replaces the file itself.
        torch_nn_exceptions: The torch.nn classes that show in tags: names, ``"all"`` or ``"none"``.
        include: Patterns on qualified class names that show in tags in any case.
        exclude: Patterns on qualified class names that do not.
        training: Run the model in the mode it is in, instead of evaluation mode.
        overwrite: Replace files that exist.
        progress: Called with a `ProgressEvent` when a step begins and ends.

    Raises:
        InputError: The file, the model, its inputs or the path cannot be used as given, or don't belong together.
        FileFormatError: The file is not an ONNX model.
        StrategyIncompatibleError: onnxruntime is missing, or cannot run the file.
        StorageError: The files could not be written.
    """
    steps = Pipeline(STEPS, progress)
    with steps.step("check"):
        target = artifact.check_target(Path(onnx_path if output_path is None else output_path), force=overwrite)
        view = TagView.create(torch_nn_exceptions, include, exclude)
        args, kwargs = _check_inputs(model, example_inputs)
    with steps.step("read") as note:
        given = _read(onnx_path, target, overwrite)
        note.detail = f"{len(identified_nodes(given.graph))} nodes"
    with steps.step("run") as note:
        tree = read_module_tree(model)
        with TURN, preserved_state(model), contextlib.nullcontext() if training else evaluation_mode(model):
            usage = attribute_by_usage(given.graph, model, tree, args, kwargs)
        _check_same_model(usage, given.path, model)
        note.detail = f"{len(usage.calls)} calls, {usage.matched} of {usage.telling} tensors known by value"
    with steps.step("document"):
        document = _document(given, tree, usage, view)
        write_stores(given.proto, document)
    with steps.step("write"):
        files = _write(given, document, target, overwrite)
    attempt = AttemptReport(STRATEGY, document.exporter, "it tags files from any exporter")
    return ExportResult(target, artifact.sidecar_path(target), files, document, (attempt,), tuple(steps.reports))


@dataclasses.dataclass(frozen=True)
class _Given:
    """A file without metadata of ours: as it lies there, as a graph, and the data files to write along with it."""

    path: Path
    proto: onnx.ModelProto
    graph: ir.Model
    moved: dict[Path, Path]


def _read(onnx_path: str | Path, target: Path, overwrite: bool) -> _Given:
    path = load(onnx_path).path
    # The base of protos is untyped, so that a type checker takes the first overload.
    proto = cast("onnx.ModelProto", strip_hierarchy(onnx.load_model(path, load_external_data=False)))
    graph = ir.from_proto(proto)
    ir.external_data.set_base_dir(graph.graph, path.parent)
    moved = _files_to_place(_data_files(graph, path), target, path)
    artifact.check_target(target, force=overwrite, others=list(moved.values()))
    return _Given(path, proto, graph, moved)


def _check_inputs(model: object, example_inputs: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"the model is a {type(model).__name__}, not a torch.nn.Module: pass the module itself")
    args, kwargs = normalize_inputs(example_inputs, None)
    check_signature(model, args, kwargs)
    require_onnxruntime()
    return args, kwargs


def _check_same_model(usage: Usage, file: Path, model: torch.nn.Module) -> None:
    if not usage.agrees:
        raise InputError(
            f"{file} does not compute what {type(model).__name__} computes on these inputs: {usage.matched} of its "
            f"{usage.telling} tensors have values that the model made. Give the model that the file was exported "
            "from, with the same weights and in the same mode; a quantized file has values of its own"
        )


def _document(given: _Given, tree: ModuleTree, usage: Usage, view: TagView) -> HierarchyDocument:
    return build_document(
        strategy=STRATEGY,
        exporter=f"{given.proto.producer_name} {given.proto.producer_version}".strip() or "unknown",
        graph_hash=graph_hash(given.graph),
        view=view,
        tree=tree,
        calls=usage.calls,
        nodes=[
            (identity, f"{node.domain}::{node.op_type}" if node.domain else node.op_type, usage.attributions[node])
            for identity, node in identified_nodes(given.graph)
        ],
    )


# --- files -----------------------------------------------------------------------------------------------------


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
    for _, node in identified_nodes(model):
        if node.graph is not None and isinstance(node.graph, ir.Graph):
            graphs.add(node.graph)
        for attribute in node.attributes.values():
            if attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.TENSOR:
                yield attribute.as_tensor()
            elif attribute.type == ir.AttributeType.TENSORS:
                yield from attribute.as_tensors()
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


def _write(given: _Given, document: HierarchyDocument, target: Path, overwrite: bool) -> tuple[Path, ...]:
    sidecar = artifact.sidecar_path(target)
    with artifact.stage(target, force=overwrite) as staging:
        staging.path(target.name).write_bytes(given.proto.SerializeToString())
        staging.path(sidecar.name).write_bytes(encode_document(document))
        for path, final in given.moved.items():
            _copy(path, staging.path(final.name), is_in_place=path == final)
        others = {final.name: final for final in (sidecar, *given.moved.values())}
        return staging.commit(target.name, None, others)


def _copy(path: Path, staged: Path, *, is_in_place: bool) -> None:
    if is_in_place:
        with contextlib.suppress(OSError):  # no hard links on this file system
            os.link(path, staged)
            return
    shutil.copyfile(path, staged)
