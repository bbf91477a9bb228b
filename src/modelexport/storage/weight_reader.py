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
from modelexport.storage.wire_format import find_raw_data

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

    @functools.cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        """Where the content of weights is in the file, for those that are stored as raw bytes."""
        try:
            with self._file.path.open("rb") as stream:
                return find_raw_data(stream, self._file.path.stat().st_size)
        except (OSError, ValueError) as error:
            raise FileFormatError(f"{self._file.path} cannot be read: {error}") from error

    def chunks(self, tensor: TensorProto) -> Iterator[bytes]:
        """The content of a weight that is not of strings, in chunks."""
        yield from self._read(tensor, 0, content_bytes(tensor))

    def part(self, tensor: TensorProto, start: int, size: int) -> bytes:
        """Some bytes of the content of a weight that is not of strings."""
        return b"".join(self._read(tensor, start, size))

    def strings(self, tensor: TensorProto) -> list[bytes]:
        """The elements of a string tensor."""
        strings = list(self._complete.get(tensor.name, tensor).string_data)
        if len(strings) != math.prod(tensor.dims):
            raise FileFormatError(
                f"{self._file.path}: weight {tensor.name!r} has {len(strings)} strings, but its shape needs "
                f"{math.prod(tensor.dims)}"
            )
        return strings

    def _read(self, tensor: TensorProto, start: int, size: int) -> Iterator[bytes]:
        if tensor.data_location == TensorProto.EXTERNAL:
            yield from self._external(tensor, start, size)
            return
        needed = content_bytes(tensor)
        if not tensor.raw_data and (place := self._places.get(tensor.name)) is not None:
            self._check_size(tensor, place[1], needed)
            yield from self._inline(tensor, place[0] + start, size)
            return
        content = self._content(tensor)
        self._check_size(tensor, len(content), needed)
        end = start + size
        yield from (content[at : min(at + CHUNK_BYTES, end)] for at in range(start, end, CHUNK_BYTES))

    def _check_size(self, tensor: TensorProto, size: int, needed: int) -> None:
        if size != needed:
            raise FileFormatError(
                f"{self._file.path}: weight {tensor.name!r} has {size} bytes, but its shape needs {needed}"
            )

    def _inline(self, tensor: TensorProto, offset: int, size: int) -> Iterator[bytes]:
        try:
            with self._file.path.open("rb") as stream:
                stream.seek(offset)
                while size and (content := stream.read(min(size, CHUNK_BYTES))):
                    size -= len(content)
                    yield content
        except OSError as error:
            raise FileFormatError(f"{self._file.path} cannot be read: {error.strerror or error}") from error
        if size:
            raise FileFormatError(f"{self._file.path} ends within weight {tensor.name!r}: it was changed meanwhile")

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
