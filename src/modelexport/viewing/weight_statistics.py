"""Statistics of initializers: exact for small ones, of a sample for large ones, within a number of bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from onnx import TensorProto

from modelexport.display import counted
from modelexport.errors import FileFormatError
from modelexport.storage import ModelFile, WeightReader, content_bytes
from modelexport.viewing.page_data import Weight, rounded
from modelexport.viewing.tensor_texts import content_text

# A larger weight is sampled: this many parts, evenly spread, of this many bytes each.
_EXACT_BYTES = 2**22
_PARTS = 16
_PART_BYTES = 2**16
# How many bytes are read for statistics in all.
READ_BYTES = 2**28
_MOST_EXAMPLES = 3


def weight_table(
    file: ModelFile, initializers: Mapping[int, TensorProto], read_bytes: int = READ_BYTES
) -> tuple[dict[int, Weight], list[str]]:
    """The initializers of a file with their statistics, and notes on what was left out.

    Args:
        file: The file.
        initializers: The weights, by tensor.
        read_bytes: How many bytes to read for statistics; 0 for none.
    """
    reader = _Statistics(file, read_bytes)
    return {number: reader.weight(tensor) for number, tensor in initializers.items()}, reader.notes()


class _Statistics:
    def __init__(self, file: ModelFile, read_bytes: int) -> None:
        self._reader = WeightReader(file)
        self._left = read_bytes
        self._skipped: list[str] = []
        self._unreadable: list[str] = []
        self._sampled = 0

    def weight(self, tensor: TensorProto) -> Weight:
        size, elements = content_bytes(tensor), math.prod(tensor.dims)
        external = tensor.data_location == TensorProto.EXTERNAL
        text = content_text(tensor)
        numbers = None if text and not tensor.dims else self._numbers(tensor, size)
        if numbers is None or not numbers.size:
            return Weight(bytes=size, elements=elements, external=external, text=text)
        sampled = numbers.size < elements
        self._sampled += sampled
        finite = numbers[np.isfinite(numbers)]
        values: dict[str, float] = {}
        if finite.size:
            values = {
                "min": rounded(float(finite.min())),
                "max": rounded(float(finite.max())),
                "mean": rounded(float(finite.mean(dtype=np.float64))),
                "std": rounded(float(finite.std(dtype=np.float64))),
            }
        return Weight(
            bytes=size,
            elements=elements,
            external=external,
            sampled=sampled,
            zeros=rounded(1 - np.count_nonzero(numbers) / numbers.size),
            nonfinite=int(numbers.size - finite.size),
            text=text,
            **values,
        )

    def _numbers(self, tensor: TensorProto, size: int) -> np.ndarray | None:
        """The elements of a weight, or a sample of them; None for types that are not numbers, and beyond the limit."""
        try:
            kind = ir.DataType(tensor.data_type)
            item, bits = kind.numpy(), kind.bitwidth
        except (TypeError, ValueError):
            return None
        if bits < 8 or item.kind not in "fiubV" or not size:
            return None
        parts = [(0, size)]
        if size > _EXACT_BYTES:
            length = _PART_BYTES - _PART_BYTES % item.itemsize
            step = (size - length) / (_PARTS - 1)
            parts = [(int(step * part) // item.itemsize * item.itemsize, length) for part in range(_PARTS)]
        needed = sum(length for _, length in parts)
        if needed > self._left:
            self._skipped.append(tensor.name)
            return None
        self._left -= needed
        try:
            data = b"".join(self._reader.part(tensor, start, length) for start, length in parts)
        except FileFormatError:
            self._unreadable.append(tensor.name)
            return None
        found = np.frombuffer(data, item.newbyteorder("<"))
        return found if item.kind in "fiu" and item.itemsize > 2 else found.astype(np.float32)

    def notes(self) -> list[str]:
        """What was sampled or left out, in words."""
        found = []
        if self._sampled:
            found.append(
                f"the statistics of {counted(self._sampled, 'weight')} of more than {_EXACT_BYTES >> 20} MiB are those "
                "of a sample"
            )
        for names, why in (
            (self._skipped, "left out, so that the page is written quickly"),
            (self._unreadable, "left out: their data is missing or cannot be read"),
        ):
            if names:
                some = ", ".join(names[:_MOST_EXAMPLES]) + (", …" if len(names) > _MOST_EXAMPLES else "")
                found.append(f"the statistics of {counted(len(names), 'weight')} are {why} ({some})")
        return found
