"""Types, shapes, attributes and contents of tensors as short texts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
import onnx_ir as ir
from onnx import AttributeProto, TensorProto

from modelexport.display import shortened
from modelexport.graph import ELEMENT_TYPES

_NAMES = {element.value: name for name, element in ELEMENT_TYPES.items()}
_SCALAR = "scalar"
_MOST_CHARACTERS = 160
_MOST_ELEMENTS = 16


def text_of(content: str | bytes) -> str:
    """Text of a proto, which is bytes if it is not UTF-8."""
    return content.decode(errors="replace") if isinstance(content, bytes) else content


def type_name(element_type: int) -> str:
    """The name of an ONNX element type: torch's where torch has it, else ONNX's in lower case; empty if unknown."""
    if element_type in _NAMES:
        return _NAMES[element_type]
    try:
        return "" if not element_type else ir.DataType(element_type).name.lower()
    except ValueError:
        return f"type {element_type}"


def shape_text(axes: Iterable[int | str | None]) -> str:
    """A shape: ``batch x 128 x 768``."""
    return " x ".join("?" if axis is None or axis == "" else str(axis) for axis in axes) or _SCALAR


def declared_type(value: onnx.ValueInfoProto) -> tuple[str, str]:
    """The names of the type and shape that a graph declares for a tensor; empty if unknown."""
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return (kind or "").removesuffix("_type"), ""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return type_name(tensor.elem_type), ""
    axes = (axis.dim_value if axis.HasField("dim_value") else text_of(axis.dim_param) for axis in tensor.shape.dim)
    return type_name(tensor.elem_type), shape_text(axes)


def attribute_text(attribute: AttributeProto) -> str:
    """The value of an attribute."""
    if attribute.ref_attr_name:
        return f"attribute {text_of(attribute.ref_attr_name)} of the function"
    if attribute.type == AttributeProto.TENSOR:
        return tensor_text(attribute.t)
    if attribute.type == AttributeProto.STRING:
        return shortened(text_of(attribute.s), _MOST_CHARACTERS)
    if attribute.type == AttributeProto.FLOAT:
        return _element_text(attribute.f)
    if attribute.type == AttributeProto.INT:
        return str(attribute.i)
    for values in (attribute.ints, attribute.floats, attribute.strings):
        if values:
            return _list_text([_element_text(each) for each in values[: _MOST_ELEMENTS + 1]])
    if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        return "subgraph"
    if attribute.type in (AttributeProto.INTS, AttributeProto.FLOATS, AttributeProto.STRINGS):
        return "[]"
    return str(AttributeProto.AttributeType.Name(attribute.type)).lower().replace("_", " ")


def tensor_text(tensor: TensorProto) -> str:
    """The content of a small tensor, the type and shape of a larger one."""
    content = content_text(tensor)
    return content or f"{type_name(tensor.data_type)} {shape_text(tensor.dims)}"


def content_text(tensor: TensorProto) -> str:
    """The content of a small tensor that is stored inline; else empty."""
    count = 1
    for axis in tensor.dims:
        count *= axis
    if not 0 < count <= _MOST_ELEMENTS or tensor.data_location == TensorProto.EXTERNAL:
        return ""
    try:
        found = onnx.numpy_helper.to_array(tensor)
        texts = [_element_text(each) for each in np.ravel(found).tolist()]
    except Exception:  # noqa: BLE001  onnx raises various errors if content and shape do not match
        return ""
    return shortened(texts[0], _MOST_CHARACTERS) if not tensor.dims else _list_text(texts)


def _element_text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return text_of(value) if isinstance(value, str | bytes) else str(value)


def _list_text(texts: list[str]) -> str:
    more = ", …" if len(texts) > _MOST_ELEMENTS else ""
    return shortened(f"[{', '.join(texts[:_MOST_ELEMENTS])}{more}]", _MOST_CHARACTERS)
