"""Write a model with its weights inside, weight by weight from where they lie in memory.

`onnx_ir.save` makes a protobuf of the whole model and serializes that: the weights are copied twice before they are
written once. Here the model is serialized with hollow weights, and the real ones go straight from their tensors to the
file. The bytes are the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx_ir as ir

from modelexport.wire import fill_initializers

# Smaller weights are serialized with the rest.
_STREAMED_BYTES = 4096


def _hollow(like: ir.TensorProtocol) -> ir.LazyTensor:
    """A tensor with the looks of another and no content."""
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


def save_inline(model: ir.Model, path: Path) -> None:
    """Write the model to one file. What the file is made of is that of `onnx_ir.save`, byte for byte."""
    with _hollowed(model) as weights:
        head = ir.to_proto(model).SerializeToString()
    with path.open("wb") as file:
        for piece in fill_initializers(memoryview(head), {name: tensor.nbytes for name, tensor in weights.items()}):
            if isinstance(piece, str):
                _write_tensor(weights[piece], file)
            else:
                file.write(piece)


@contextlib.contextmanager
def _hollowed(model: ir.Model) -> Iterator[dict[str, ir.TensorProtocol]]:
    """The model with hollow weights for the time of the context; gives the real ones by name."""
    weights: dict[str, ir.TensorProtocol] = {}
    try:
        for name, value in model.graph.initializers.items():
            tensor = value.const_value
            if tensor is None or isinstance(tensor, ir.ExternalTensor) or tensor.dtype == ir.DataType.STRING:
                continue
            if tensor.nbytes >= _STREAMED_BYTES:
                weights[name] = tensor
                value.const_value = _hollow(tensor)
        yield weights
    finally:
        for name, tensor in weights.items():
            model.graph.initializers[name].const_value = tensor


def _write_tensor(tensor: ir.TensorProtocol, file: BinaryIO) -> None:
    if isinstance(tensor, ir.Tensor):
        tensor.tofile(file)
    else:
        file.write(tensor.tobytes())
