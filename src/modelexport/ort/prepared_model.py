"""Prepare a model for runs in the child process, which maps large weights from files and returns any tensor."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx.external_data_helper import load_external_data_for_tensor

from modelexport.errors import FileFormatError, OnnxRunError
from modelexport.graph import weight_bytes
from modelexport.ort.runner import Runner

Array = npt.NDArray[Any]

# Weights up to this total size are sent to the child process with the model.
_INLINE_BYTES = 2**24
_SMALL_BYTES = 1024
# An external weight of up to this many elements may be a shape, which onnxruntime needs to create a session.
_SHAPE_ELEMENTS = 128
# The most that one run returns: the graph runs once for each group of tensors of this size and number.
_GROUP_BYTES = 2**28
_GROUP_TENSORS = 1024
_UNKNOWN_BYTES = 2**20
# Element types that numpy does not have: passed and returned as 32-bit floats, which represent all their values.
_WIDENED = frozenset(
    {
        onnx.TensorProto.BFLOAT16,
        onnx.TensorProto.FLOAT8E4M3FN,
        onnx.TensorProto.FLOAT8E4M3FNUZ,
        onnx.TensorProto.FLOAT8E5M2,
        onnx.TensorProto.FLOAT8E5M2FNUZ,
    }
)


@contextlib.contextmanager
def prepared(model: ir.Model) -> Iterator[PreparedModel]:
    """Prepare a model for runs. External weights stay in their files; large inline weights go to a temporary file.

    Raises:
        FileFormatError: The model cannot be serialized (text that is not UTF-8, a tensor that contradicts its shape),
            or external data is missing.
    """
    folder = external_folder(model)
    with contextlib.ExitStack() as stack:
        try:
            if folder is None and weight_bytes(model) > _INLINE_BYTES:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="modelexport-")))
                unload = ir.external_data.unload_from_model
                model = unload(model.clone(), folder, "weights", size_threshold_bytes=_SMALL_BYTES)
            proto = ir.to_proto(model)
        except Exception as error:
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            raise FileFormatError(f"the model cannot be serialized: {type(cause).__name__}: {cause}") from error
        yield PreparedModel(proto, folder)


def external_folder(model: ir.Model) -> Path | None:
    """The folder of the model's external data; None if all weights are in memory."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                return Path(value.const_value.base_dir)
    return None


def numpy_type(dtype: ir.DataType) -> np.dtype | None:
    """The numpy type in which an input of this element type is passed, or None."""
    if dtype.value in _WIDENED:
        return np.dtype(np.float32)
    try:
        found = dtype.numpy()
    except TypeError:
        return None
    return found if found.kind in "fiub" else None


class PreparedModel:
    """Runs a model for any of its tensors.

    Args:
        model: The model; it is changed.
        folder: The folder of its external data.

    Attributes:
        proto: The model without its outputs.
        folder: The folder of its external data.
        outputs: The names of the model's outputs.
        produced: The names of the tensors that nodes of the main graph produce.
    """

    def __init__(self, model: onnx.ModelProto, folder: Path | None) -> None:
        graph = model.graph
        self.proto, self.folder = model, folder
        self.outputs = [value.name for value in graph.output]
        self.produced = [name for node in graph.node for name in node.output if name]
        self._types = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.output)}
        # onnxruntime infers types itself; the shapes in the file may not hold for these inputs.
        del graph.output[:]
        del graph.value_info[:]
        # Node names may repeat in ONNX, and onnxruntime rejects that.
        names = Counter(node.name for node in graph.node)
        for node in graph.node:
            if names[node.name] > 1:
                node.name = ""
        for tensor in graph.initializer:
            if folder is not None and _is_external(tensor) and math.prod(tensor.dims) <= _SHAPE_ELEMENTS:
                try:
                    load_external_data_for_tensor(tensor, str(folder))
                except Exception as error:
                    reason = f"{type(error).__name__}: {error}"
                    raise FileFormatError(f"the weight {tensor.name!r} cannot be read: {reason}") from error
                tensor.data_location = onnx.TensorProto.DEFAULT
                del tensor.external_data[:]
        self._content: bytes | None = None

    def tensors(
        self,
        runner: Runner,
        feeds: Mapping[str, Array],
        names: Sequence[str] | None = None,
        unknown_bytes: int = _UNKNOWN_BYTES,
    ) -> Iterator[tuple[str, Array]]:
        """Run the model and yield tensors of its main graph, one at a time, without those that are not numeric.

        Args:
            runner: Runs it.
            feeds: Its inputs by name; they are converted to the declared types.
            names: The tensors; None for the model's outputs. Many tensors take several runs, which limits the memory
                of the child process.
            unknown_bytes: The assumed size of a tensor of unknown shape.

        Raises:
            OnnxRunError: onnxruntime cannot run the model on these inputs.
        """
        converted = self._feeds(feeds)
        for group in self._groups(self.outputs if names is None else names, unknown_bytes):
            widened = {_widened(name): name for name in group if self._types_of(name) in _WIDENED}
            wanted = {name: name for name in group} | {name: new for new, name in widened.items()}
            graph = onnx.GraphProto(
                node=[
                    onnx.helper.make_node("Cast", [n], [new], to=onnx.TensorProto.FLOAT) for new, n in widened.items()
                ],
                output=[onnx.ValueInfoProto(name=name) for name in wanted.values()],
            )
            # Protobuf merges a message that follows another: the graph is serialized once for all groups.
            pieces = [self._serialized(), onnx.ModelProto(graph=graph).SerializeToString()]
            for name, array in runner.run(pieces, converted, list(wanted.values()), self.folder):
                yield widened.get(name, name), array

    def _types_of(self, name: str) -> int:
        kind = self._types.get(name)
        return 0 if kind is None else int(kind.elem_type)

    def _groups(self, names: Iterable[str], unknown_bytes: int) -> Iterator[list[str]]:
        group: list[str] = []
        total = 0
        for name in names:
            size = self._size(name, unknown_bytes)
            if group and (total + size > _GROUP_BYTES or len(group) == _GROUP_TENSORS):
                yield group
                group, total = [], 0
            group.append(name)
            total += size
        if group:
            yield group

    def _size(self, name: str, unknown_bytes: int) -> int:
        kind = self._types.get(name)
        if kind is None or not kind.HasField("shape") or not all(d.HasField("dim_value") for d in kind.shape.dim):
            return unknown_bytes
        dtype = _numpy_type(kind.elem_type)
        return math.prod(d.dim_value for d in kind.shape.dim) * dtype.itemsize if dtype is not None else unknown_bytes

    def _feeds(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        found = dict(feeds)
        for value in self.proto.graph.input:
            if value.name in feeds:
                kind = value.type.tensor_type.elem_type
                dtype = _numpy_type(kind)
                array = found.pop(value.name)
                name = _widened(value.name) if kind in _WIDENED else value.name
                found[name] = array if dtype is None else array.astype(dtype, copy=False)
        return found

    def _serialized(self) -> bytes:
        """The model without outputs; inputs of types that numpy does not have are replaced by float inputs."""
        if self._content is None:
            model = self.proto
            if any(value.type.tensor_type.elem_type in _WIDENED for value in model.graph.input):
                model = onnx.ModelProto()
                model.CopyFrom(self.proto)
                _widen_inputs(model.graph)
            try:
                self._content = model.SerializeToString()
            except Exception as error:  # protobuf raises several types
                raise OnnxRunError(f"the graph with its inline weights is too large to serialize: {error}") from error
        return self._content


def _is_external(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == onnx.TensorProto.EXTERNAL


def _numpy_type(kind: int) -> np.dtype | None:
    try:
        return numpy_type(ir.DataType(kind))
    except ValueError:
        return None


def _widened(name: str) -> str:
    return f"{name} as float"


def _widen_inputs(graph: onnx.GraphProto) -> None:
    casts = []
    for value in graph.input:
        kind = value.type.tensor_type.elem_type
        if kind in _WIDENED:
            # The result of the cast keeps the input's name: subgraphs may consume it too.
            casts.append(onnx.helper.make_node("Cast", [_widened(value.name)], [value.name], to=kind))
            value.name = _widened(value.name)
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
