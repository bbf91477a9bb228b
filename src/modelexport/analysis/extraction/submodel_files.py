"""Write submodels to files: one, or many to a folder with a manifest; all or none, with safe file names."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import onnx_ir as ir

from modelexport.analysis.extraction.extractor import Extractor, ModelSource
from modelexport.analysis.extraction.submodel import Submodel
from modelexport.analysis.extraction.submodel_document import Port
from modelexport.analysis.query import select_calls
from modelexport.deadline import reads_files
from modelexport.display import Cell, Summary, summarized
from modelexport.errors import ExtractionError, InputError, ModelExportError
from modelexport.graph import subgraphs_of, weight_bytes
from modelexport.hierarchy import encode_document, json_schema
from modelexport.storage import (
    check_target,
    check_text_target,
    data_file_name,
    save_inline,
    sidecar_path,
    stage_files,
    write_tensor,
)

# Larger weights are stored in a separate file, as in an export.
_EXTERNAL_DATA_BYTES = 2**30
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
# Names that Windows reserves for devices, with any extension.
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\.|$)")
_MAX_NAME_LENGTH = 80
_DIGEST_LENGTH = 8
MANIFEST = "manifest.json"
# The nodes of all submodels together: those of nested calls repeat the nodes of the calls inside, to any depth.
_MOST_NODES = 10_000_000


class SubmodelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A submodel in reports and manifests.

    Attributes:
        call: The call that was extracted.
        tag: Its tag.
        node_count: How many nodes it has.
        inputs: Its inputs.
        outputs: Its outputs.
        notes: What users should know about it.
    """

    call: str
    tag: str
    node_count: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    notes: tuple[str, ...]


class WrittenSubmodel(SubmodelSummary, frozen=True, kw_only=True):
    """A submodel that was written to files."""

    files: tuple[str, ...]
    schema_version: int = 1


class ListedSubmodel(SubmodelSummary, frozen=True, kw_only=True):
    """A submodel of a folder; the file is relative to the folder."""

    file: str


class RefusedSubmodel(msgspec.Struct, frozen=True):
    """A call that could not be extracted; `ExtractionError` documents the fields."""

    call: str
    reason: str
    explanation: str
    fused_with: tuple[str, ...]
    enclosing: str | None


class Manifest(msgspec.Struct, frozen=True):
    """A folder of submodels: the file of each call, and the calls that were refused with the reason."""

    submodels: tuple[ListedSubmodel, ...]
    refused: tuple[RefusedSubmodel, ...]
    schema_version: int = 1


def _summary(found: ExtractedModules) -> Summary:
    facts = {"manifest": found.manifest, "submodels": len(found.submodels), "refused": len(found.refused)}
    rows: list[tuple[Cell, ...]] = [(entry.call or "(root)", entry.file, entry.node_count) for entry in found.submodels]
    rows += [(entry.call or "(root)", entry.explanation, None) for entry in found.refused]
    return Summary(facts, ("call", "file", "nodes"), rows)


@summarized(_summary)
class ExtractedModules(Manifest, frozen=True, kw_only=True):
    """The modules that were extracted to a folder, and those that were refused.

    Attributes:
        manifest: The path of the manifest, which lists both.
    """

    manifest: str


def extraction_schema() -> dict[str, Any]:
    """The JSON Schema of the output of ``modelexport extract --format json``, without and with --select."""
    return json_schema("modelexport extraction", WrittenSubmodel, ExtractedModules)


def summarize_submodel(submodel: Submodel) -> SubmodelSummary:
    """The summary of a submodel, for reports and manifests."""
    return SubmodelSummary(
        call=submodel.call.id,
        tag=submodel.call.tag,
        node_count=len(submodel.document.nodes),
        inputs=submodel.inputs,
        outputs=submodel.outputs,
        notes=tuple(submodel.notes),
    )


def write_submodel(
    submodel: Submodel, path: str | Path, *, overwrite: bool = False, external_data: bool | None = None
) -> tuple[Path, ...]:
    """Write a submodel with its sidecar. Weights are copied one at a time.

    Args:
        path: Where to write ``<name>.onnx``.
        overwrite: Replace an existing output.
        external_data: Store weights in a separate file; None does so only if they are large.

    Returns:
        The files written: the model first.
    """
    target = check_target(path, force=overwrite)
    sidecar = sidecar_path(target)
    size = weight_bytes(submodel.model)
    apart = size > _EXTERNAL_DATA_BYTES if external_data is None else external_data
    with stage_files(target, force=overwrite) as staging, _serializing(submodel):
        staged = staging.path(target.name)
        data_name = None
        if apart and size:
            data_name = _write_external(submodel.model, staged, target)
        else:
            _load_inner_weights(submodel.model)
            save_inline(submodel.model, staged, external=True)
        staging.path(sidecar.name).write_bytes(encode_document(submodel.document))
        return staging.commit(target.name, data_name, {sidecar.name: sidecar})


@contextlib.contextmanager
def _serializing(submodel: Submodel) -> Iterator[None]:
    """An invalid file can have content that cannot be serialized: text that is not UTF-8, a tensor of another size."""
    try:
        yield
    except (OSError, ModelExportError):
        raise
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = f"{type(cause).__name__}: {cause}".splitlines()[0]
        raise ExtractionError(
            submodel.call.id, "invalid_graph", f"the model has content that cannot be serialized ({reason:.200})"
        ) from error


def _write_external(model: ir.Model, staged: Path, target: Path) -> str:
    """Write the weights one after the other into a file named after its content, and the model beside it."""
    _load_inner_weights(model)
    written = staged.with_name("weights")
    kept: dict[str, ir.TensorProtocol] = {}
    places: dict[str, tuple[int, int]] = {}
    with written.open("w+b") as file:
        for name, value in model.graph.initializers.items():
            tensor = value.const_value
            if tensor is None or tensor.dtype == ir.DataType.STRING:
                continue
            offset = file.tell()
            write_tensor(tensor, file)
            kept[name], places[name] = tensor, (offset, file.tell() - offset)
        file.seek(0)
        data_name = data_file_name(target, hashlib.file_digest(file, "sha256").hexdigest())
    written.rename(staged.with_name(data_name))
    try:
        for name, tensor in kept.items():
            shape = ir.Shape([int(str(size)) for size in tensor.shape])
            model.graph.initializers[name].const_value = ir.ExternalTensor(
                data_name, *places[name], tensor.dtype, shape=shape, name=name, base_dir=staged.parent
            )
        staged.write_bytes(ir.to_proto(model).SerializeToString())
    finally:
        for name, tensor in kept.items():
            model.graph.initializers[name].const_value = tensor
    return data_name


def _load_inner_weights(model: ir.Model) -> None:
    """Load the external tensors of attributes and subgraphs, which are small: they are written inline."""
    for node in model.graph.all_nodes():
        for name, attribute in node.attributes.items():
            if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                node.attributes[name] = ir.AttrTensor(name, ir.Tensor(attribute.value.numpy()))
        for _, subgraph in subgraphs_of(node):
            for value in subgraph.initializers.values():
                if isinstance(value.const_value, ir.ExternalTensor):
                    value.const_value = ir.Tensor(value.const_value.numpy(), name=value.name)


def file_names(calls: Iterable[str], root: str) -> dict[str, str]:
    """A file name for each call: safe on every system, and unique even where case is ignored.

    Args:
        root: The name for the root call, whose own name is empty.
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for call in calls:
        plain = call or root
        name = _UNSAFE.sub("_", plain).strip(".")[:_MAX_NAME_LENGTH] or "_"
        if name != plain or name.lower() in taken or _RESERVED.match(name):
            digest = hashlib.sha256(call.encode("utf-8", "surrogatepass")).hexdigest()
            name = f"_{name}" if _RESERVED.match(name) else name
            name = f"{name}-{digest[:_DIGEST_LENGTH]}"
        taken.add(name.lower())
        names[call] = f"{name}.onnx"
    return names


@reads_files()
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
    (folder / MANIFEST).write_text(json.dumps(msgspec.to_builtins(found), indent=1) + "\n", encoding="utf-8")
    return found
