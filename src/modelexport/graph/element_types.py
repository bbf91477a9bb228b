"""ONNX element types by their torch names, which documents use."""

from __future__ import annotations

import onnx_ir as ir

ELEMENT_TYPES = {
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "float32": ir.DataType.FLOAT,
    "float64": ir.DataType.DOUBLE,
    "complex64": ir.DataType.COMPLEX64,
    "complex128": ir.DataType.COMPLEX128,
    **{f"{kind}{bits}": ir.DataType[f"{kind.upper()}{bits}"] for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    "bool": ir.DataType.BOOL,
}
