"""The coarsest number types that nodes of an ONNX graph compute with, by which a tolerance is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from modelexport.graph import ELEMENT_TYPES, subgraphs_of
from modelexport.verification.difference import EIGHT_BITS, FOUR_BITS

_FLOATS = {element: name for name, element in ELEMENT_TYPES.items() if element.is_floating_point()} | {
    element: element.name.lower().replace("float8e", "float8_e") for element in ir.DataType if "FLOAT8" in element.name
}
_INTEGERS = {
    ir.DataType.INT8: EIGHT_BITS,
    ir.DataType.UINT8: EIGHT_BITS,
    ir.DataType.INT4: FOUR_BITS,
    ir.DataType.UINT4: FOUR_BITS,
}


def precisions_of(nodes: Iterable[ir.Node]) -> frozenset[str]:
    """The types of the floats that these nodes compute with, and the widths of integers that represent floats."""
    return frozenset(name for node in nodes for name in _of_node(node))


def _of_node(node: ir.Node) -> Iterator[str]:
    inputs = [value for value in node.inputs if value is not None]
    has_floats = any(value.dtype in _FLOATS for value in inputs)
    for value in (*inputs, *node.outputs):
        if value.dtype in _FLOATS:
            yield _FLOATS[value.dtype]
        elif value.dtype in _INTEGERS and (value.is_initializer() or (has_floats and value.producer() is node)):
            # A small integer is a quantized float if it is a weight, or computed from floats: not if it is a pixel.
            yield _INTEGERS[value.dtype]
    for _, subgraph in subgraphs_of(node):
        for inner in subgraph:
            yield from _of_node(inner)
