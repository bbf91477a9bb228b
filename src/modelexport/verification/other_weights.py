"""Recognize a PyTorch model with other weights than the file, before any module is blamed for the difference."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch

from modelexport.errors import InputError
from modelexport.hierarchy import HierarchyDocument
from modelexport.verification.pytorch_run import array_of


def refuse_other_weights(graph: ir.Graph, document: HierarchyDocument, model: torch.nn.Module) -> None:
    """Refuse a model none of whose parameters is in the file, while the file has others in their place.

    Tools cast, quantize, transpose and fold weights, so that a missing parameter alone says nothing. The file has to
    have other numbers of its type and size under its name, for nodes that are as the exporter traced them.

    Raises:
        InputError: The weights are other ones.
    """
    traced = {record.id for record in document.nodes if record.kind == "exact" and not record.contributors}
    names = {tensor.parameter: tensor.id for tensor in document.tensors}
    parameters = [(name, parameter) for name, parameter in model.named_parameters() if not parameter.is_meta]
    own = {name: _content(array_of(parameter)) for name, parameter in parameters}
    stored = {
        name: _content(np.asarray(value.const_value.numpy()))
        for name, value in graph.initializers.items()
        if value.const_value is not None and value.dtype is not ir.DataType.STRING
    }
    different = [
        name
        for name, content in own.items()
        if content is not None
        and (there := stored.get(names.get(name, ""))) is not None
        and content[:2] == there[:2]
        and all(use.node.outputs[0].name in traced for use in graph.initializers[names[name]].uses())
    ]
    if different and {*own.values()}.isdisjoint({*stored.values()} - {None}):
        raise InputError(
            f"the weights of the PyTorch model are not those of the file: none of its {len(own)} parameters is in the "
            f"file, which has another {different[0]}. Give the model with the weights that were exported; one with "
            "random weights needs a seed, such as torch.manual_seed(0) before it is created"
        )


def _content(array: np.ndarray) -> tuple[str, int, int] | None:
    """Type, size and the sum of the bits, the same in any order; None if all elements are equal, as new biases are."""
    flat = np.ascontiguousarray(array if array.dtype.kind in "fiub" else array.astype(np.float32)).ravel()
    if flat.size < 2 or (flat == flat[0]).all():
        return None
    return str(flat.dtype), flat.size, int(flat.view(f"i{flat.itemsize}").sum(dtype=np.int64))
