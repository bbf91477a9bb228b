"""Write submodels to files: the model, its weights and its sidecar, all or none; with safe file names."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx_ir as ir

from modelexport.analysis.extraction.submodel import Submodel
from modelexport.errors import ExtractionError, ModelExportError
from modelexport.graph import subgraphs_of, weight_bytes
from modelexport.hierarchy import encode_document
from modelexport.storage import check_target, data_file_name, save_inline, sidecar_path, stage_files, write_tensor

# Larger weights are stored in a separate file, as in an export.
_EXTERNAL_DATA_BYTES = 2**30
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
# Names that Windows reserves for devices, with any extension.
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\.|$)")
_MAX_NAME_LENGTH = 80
_DIGEST_LENGTH = 8


def write_submodel(
    submodel: Submodel, path: str | Path, *, overwrite: bool = False, external_data: bool | None = None
) -> tuple[Path, ...]:
    """Write a submodel with its sidecar. Weights are copied one at a time.

    Args:
        submodel: The submodel.
        path: Where to write ``<name>.onnx``.
        overwrite: Replace an existing output.
        external_data: Store weights in a separate file; None does so only if they are large.

    Returns:
        The files written: the model first.

    Raises:
        InputError: The path cannot be used.
        StorageError: The files could not be written; what was there before is untouched.
        ExtractionError: The model has content that cannot be serialized.
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
            submodel.call.id, "broken_graph", f"the model has content that cannot be serialized ({reason:.200})"
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
        calls: The calls.
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
