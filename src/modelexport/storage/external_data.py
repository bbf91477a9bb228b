"""External data: the files that may hold it, and the only code that reads it.

onnx_ir maps data files into memory, and the system ends a process that reads a mapped file which was truncated.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from modelexport.errors import FileFormatError
from modelexport.graph import subgraphs_of
from modelexport.limits import ReadLimits

_PART_BYTES = 2**20


def cache_repository(file: Path) -> Path | None:
    """The repository's folder if the file is in a snapshot of a HuggingFace cache, else None."""
    return next((folder.parent for folder in file.parents if folder.name == "snapshots"), None)


class DataFolder:
    """The folder of a model file, and which files in it may hold external data: regular files, not links out of it.

    In a HuggingFace cache each file is a link from ``snapshots/<revision>`` to ``blobs`` of the same repository; such
    links, and no others, are followed.
    """

    def __init__(self, file: Path, limits: ReadLimits) -> None:
        self._file = file
        self._limits = limits
        self._sizes: dict[str, int | None] = {}
        # Not `resolve`, which follows the links of a cache.
        self.path = Path(os.path.abspath(file)).parent  # noqa: PTH100
        self._allowed = [self.path.resolve()]
        repository = cache_repository(self.path / file.name)
        if repository is not None:
            # `blobs` itself must not be a link.
            self._allowed.append(repository.resolve() / "blobs")

    def check(self, owner: str, tensor: onnx.TensorProto) -> None:
        """Refuse a tensor whose data is outside the folder or beyond the end of its file. A missing file is accepted.

        Raises:
            FileFormatError: Names the tensor and the problem.
        """
        try:
            entries = {entry.key: "" + entry.value for entry in tensor.external_data}
        except TypeError as error:
            raise self._refusal(owner, "its location is not UTF-8") from error
        location = entries.get("location", "")
        if location not in self._sizes:
            self._sizes[location] = self._size(owner, location)
        size = self._sizes[location]
        offset, length = (self._count(owner, key, entries.get(key)) for key in ("offset", "length"))
        if size is None:
            return
        needed = tensor_bytes(tensor)
        start = offset or 0
        if length is not None and needed is not None and length != needed:
            raise self._refusal(owner, f"its length is given as {length} bytes, but its shape needs {needed}")
        extent = length if length is not None else needed or 0
        if start + extent > size:
            raise self._refusal(owner, f"its data ends at byte {start + extent} of {location!r}, whose size is {size}")

    def read(self, owner: str, location: str, offset: int, size: int, part: int = _PART_BYTES) -> Iterator[bytes]:
        """The content of a tensor in parts of `part` bytes, the last one shorter.

        Raises:
            FileFormatError: The data file is missing, was replaced, or ends within the tensor.
        """
        # Once more than `check`: the file may have been replaced since.
        if self._size(owner, location) is None:
            raise self._refusal(owner, f"{location!r} does not exist")
        try:
            with (self.path / location).open("rb") as stream:
                stream.seek(offset)
                while size and (content := stream.read(min(size, part))):
                    size -= len(content)
                    yield content
        except OSError as error:
            raise self._refusal(owner, f"{location!r} cannot be read: {error.strerror or error}") from error
        if size:
            raise self._refusal(owner, f"{location!r} ends within it")

    def contains(self, path: Path) -> bool:
        """Whether the resolved path is in the folder, or in the cache that the folder belongs to."""
        real = path.resolve()
        return any(real.is_relative_to(folder) for folder in self._allowed)

    def _size(self, owner: str, location: str) -> int | None:
        """The size of a data file, None where it does not exist."""
        windows = PureWindowsPath(location)
        if not location or "\0" in location:
            raise self._refusal(owner, "its location is empty or has a NUL character")
        if location.startswith(("/", "\\")) or windows.drive or windows.root:
            raise self._refusal(owner, f"{location!r} is an absolute path")
        if ".." in windows.parts or ".." in PurePosixPath(location).parts:
            raise self._refusal(owner, f"{location!r} is outside its folder")
        target = self.path / location
        try:
            if not self.contains(target):
                raise self._refusal(owner, f"{location!r} is a link to outside its folder")
            status = target.stat()
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RuntimeError) as error:
            raise self._refusal(owner, f"{location!r} cannot be accessed: {error}") from error
        if not stat.S_ISREG(status.st_mode):
            raise self._refusal(owner, f"{location!r} is not a regular file")
        if status.st_nlink > 1 and not self._limits.linked_data:
            raise self._refusal(
                owner,
                f"{location!r} has several hard links (ReadLimits.linked_data allows that)",
            )
        return status.st_size

    def _count(self, owner: str, key: str, text: str | None) -> int | None:
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise self._refusal(owner, f"its {key} {text[:40]!r} is not a number of bytes")
        return int(text)

    def _refusal(self, owner: str, problem: str) -> FileFormatError:
        return FileFormatError(f"{self._file} has external data for {owner}, and {problem}: it is not read")


def tensor_bytes(tensor: onnx.TensorProto) -> int | None:
    """The size of a tensor by its shape and type, without reading it; None for types that are not numbers."""
    try:
        bits = ir.DataType(tensor.data_type).bitwidth
    except (ValueError, TypeError):
        return None
    count: int = math.prod(tensor.dims)
    return -(-count * bits // 8)


class ReadTensor(ir.ExternalTensor):
    """An external tensor whose content is read at each use and not kept, rather than mapped into memory."""

    def __init__(self, tensor: ir.ExternalTensor, folder: DataFolder) -> None:
        super().__init__(
            tensor.location,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=tensor.shape,
            name=tensor.name,
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
            base_dir=folder.path,
        )
        self._folder = folder

    def _parts(self) -> Iterator[bytes]:
        size = self.length or self.nbytes
        return self._folder.read(f"weight {self.name!r}", str(self.location), self.offset or 0, size)

    def tobytes(self) -> bytes:
        """The content, little-endian."""
        return b"".join(self._parts())

    def tofile(self, file: BinaryIO) -> None:
        """Copy the content to a file, part by part."""
        for part in self._parts():
            file.write(part)

    def numpy(self) -> npt.NDArray[Any]:
        """The content as an array."""
        if self.dtype.bitwidth < 8:
            proto = onnx.TensorProto(data_type=self.dtype, dims=self.shape.numpy(), raw_data=self.tobytes())
            return ir.serde.TensorProtoTensor(proto).numpy()
        data = np.empty(self.nbytes, np.uint8)
        done = 0
        for part in self._parts():
            data[done : done + len(part)] = np.frombuffer(part, np.uint8)
            done += len(part)
        return data.view(self.dtype.numpy().newbyteorder("<")).reshape(self.shape.numpy())

    def __array__(self, dtype: Any = None) -> npt.NDArray[Any]:
        """The content as numpy asks for it."""
        return np.asarray(self.numpy(), dtype)


def read_when_used(graph: ir.Graph, folder: DataFolder) -> None:
    """Replace the external tensors of a graph and its subgraphs, attributes included, by tensors that are read."""

    def read(tensor: Any) -> Any:
        return ReadTensor(tensor, folder) if isinstance(tensor, ir.ExternalTensor) else tensor

    waiting = [graph]
    while waiting:
        current = waiting.pop()
        for value in current.initializers.values():
            value.const_value = read(value.const_value)
        for node in current:
            waiting.extend(subgraph for _, subgraph in subgraphs_of(node))
            for name, attribute in node.attributes.items():
                if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                    node.attributes[name] = ir.AttrTensor(name, read(attribute.value))
                elif attribute.type == ir.AttributeType.TENSORS and not attribute.is_ref():
                    node.attributes[name] = ir.AttrTensors(name, [read(tensor) for tensor in attribute.as_tensors()])
