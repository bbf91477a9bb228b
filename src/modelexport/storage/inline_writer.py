"""Writes a model with its weights inline, one weight at a time, without copying them.

`onnx_ir.save` builds a protobuf of the whole model and serializes it, which copies all weights twice. Here the model is
serialized with empty placeholder tensors, and the weights are written straight from memory. The bytes are the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx_ir as ir

from modelexport.storage.wire_format import fill_initializers

# Smaller weights are serialized with the rest.
_STREAMED_BYTES = 4096


def _placeholder(like: ir.TensorProtocol) -> ir.LazyTensor:
    """A tensor with the type, shape and name of another, and no content."""
    nothing = ir.tensor(np.empty(0, dtype=np.uint8))
    return ir.LazyTensor(
        lambda: nothing,
        dtype=like.dtype,
        # A weight has no dynamic axes.
        shape=ir.Shape([int(str(size)) for size in like.shape]),
        name=like.name,
        doc_string=like.doc_string,
        metadata_props=dict(like.metadata_props),
    )


def save_inline(model: ir.Model, path: Path, *, external: bool = False) -> None:
    """Write the model to one file, byte for byte as `onnx_ir.save` does.

    Args:
        model: The model.
        path: The file.
        external: Whether weights in other files are written into this one; otherwise they stay where they are.
    """
    with _with_placeholders(model, external) as weights:
        head = ir.to_proto(model).SerializeToString()
    with path.open("wb") as file:
        for piece in fill_initializers(memoryview(head), {name: tensor.nbytes for name, tensor in weights.items()}):
            if isinstance(piece, str):
                write_tensor(weights[piece], file)
            else:
                file.write(piece)


@contextlib.contextmanager
def _with_placeholders(model: ir.Model, external: bool) -> Iterator[dict[str, ir.TensorProtocol]]:
    """Replace large weights by placeholders for the time of the context; yields the weights by name."""
    weights: dict[str, ir.TensorProtocol] = {}
    try:
        for name, value in model.graph.initializers.items():
            tensor = value.const_value
            if tensor is None or tensor.dtype == ir.DataType.STRING:
                continue
            is_external = isinstance(tensor, ir.ExternalTensor)
            if external if is_external else tensor.nbytes >= _STREAMED_BYTES:
                weights[name] = tensor
                value.const_value = _placeholder(tensor)
        yield weights
    finally:
        for name, tensor in weights.items():
            model.graph.initializers[name].const_value = tensor


def write_tensor(tensor: ir.TensorProtocol, file: BinaryIO) -> None:
    """Write the bytes of a weight; those of an external weight are read part by part.

    Raises:
        FileFormatError: The data file cannot be read, or ends within the weight.
    """
    array = tensor.raw if isinstance(tensor, ir.Tensor) else None
    # numpy's tofile writes a transposed array element by element.
    is_transposed = isinstance(array, np.ndarray) and not array.flags.c_contiguous
    if isinstance(tensor, ir.Tensor | ir.ExternalTensor) and not is_transposed:
        tensor.tofile(file)
    else:
        file.write(tensor.tobytes())
