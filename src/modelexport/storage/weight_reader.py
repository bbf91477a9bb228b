"""Read the content of a file's weights: inline, or in external data."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import onnx
from onnx import TensorProto

from modelexport.errors import FileFormatError
from modelexport.limits import DEFAULT_LIMITS, ReadLimits
from modelexport.storage.external_data import DataFolder, tensor_bytes
from modelexport.storage.opened_file import ModelFile, read_proto

CHUNK_BYTES = 2**22


class WeightReader:
    """Reads the content of the weights of one opened file.

    Args:
        file: The file.
        limits: How large and how deep a file is accepted.
    """

    def __init__(self, file: ModelFile, limits: ReadLimits = DEFAULT_LIMITS) -> None:
        self._file = file
        self._limits = limits
        self._folder = DataFolder(file.path, limits)

    @functools.cached_property
    def _complete(self) -> dict[str, TensorProto]:
        """The weights with their content, which `read_model` skips for large ones."""
        proto = read_proto(self._file.path, self._limits, weights=True)
        return {weight.name: weight for weight in proto.graph.initializer}

    def chunks(self, tensor: TensorProto) -> Iterator[bytes]:
        """The content of a weight in chunks."""
        size = content_bytes(tensor)
        if tensor.data_location == TensorProto.EXTERNAL:
            yield from self._external(tensor, 0, size)
            return
        content = self._inline(tensor, size)
        yield from (content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES))

    def part(self, tensor: TensorProto, start: int, size: int) -> bytes:
        """Some bytes of the content of a weight that is not of strings."""
        if tensor.data_location == TensorProto.EXTERNAL:
            return b"".join(self._external(tensor, start, size))
        return self._inline(tensor, content_bytes(tensor))[start : start + size]

    def strings(self, tensor: TensorProto) -> list[bytes]:
        """The elements of a string tensor."""
        strings = list(self._complete.get(tensor.name, tensor).string_data)
        if len(strings) != math.prod(tensor.dims):
            raise FileFormatError(
                f"{self._file.path}: weight {tensor.name!r} has {len(strings)} strings, but its shape needs "
                f"{math.prod(tensor.dims)}"
            )
        return strings

    def _inline(self, tensor: TensorProto, size: int) -> bytes:
        content = self._content(tensor)
        if len(content) != size:
            raise FileFormatError(
                f"{self._file.path}: weight {tensor.name!r} has {len(content)} bytes, but its shape needs {size}"
            )
        return content

    def _content(self, tensor: TensorProto) -> bytes:
        if not tensor.raw_data:
            tensor = self._complete.get(tensor.name, tensor)
        if tensor.raw_data:
            return tensor.raw_data
        try:
            return onnx.numpy_helper.to_array(tensor).tobytes()
        except (ValueError, TypeError, KeyError) as error:
            raise FileFormatError(f"{self._file.path}: weight {tensor.name!r} cannot be read: {error}") from error

    def _external(self, tensor: TensorProto, start: int, size: int) -> Iterator[bytes]:
        owner = f"weight {tensor.name!r}"
        self._folder.check(owner, tensor)
        entries = {entry.key: entry.value for entry in tensor.external_data}
        offset = int(entries.get("offset", "0")) + start
        yield from self._folder.read(owner, entries["location"], offset, size, CHUNK_BYTES)


def content_bytes(tensor: TensorProto) -> int:
    """The size of the content by shape and type; for strings, the size of the tensor as read."""
    size = tensor_bytes(tensor)
    return tensor.ByteSize() if size is None else size
