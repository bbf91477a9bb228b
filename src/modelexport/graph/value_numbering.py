"""Value numbering: which values of a graph are equal by construction, and which depend on the model's inputs."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from modelexport.graph.digest import SMALL_TENSOR_BYTES, attribute_text
from modelexport.graph.traversal import subgraphs_of


class ValueNumbers:
    """One number for each value of a model's graphs.

    Two values have the same number if the same operator with the same attributes computes them from values of the same
    numbers, or if they are constants of the same content: those that common-subexpression elimination may merge. The
    output of a node with a subgraph, of one that draws random numbers, or of one without inputs that is not a constant,
    has a number of its own.

    Args:
        model: The model.
        passed_on: For outputs of nodes that return their input, that input: both get the same number.
    """

    def __init__(self, model: ir.Model, passed_on: Mapping[ir.Value, ir.Value] | None = None) -> None:
        self._passed_on = passed_on or {}
        self._numbers: dict[ir.Value, int] = {}
        self._keys: dict[object, int] = {}
        self._dynamic: dict[ir.Value, bool] = {}
        self._producers: dict[int, list[ir.Node]] = {}
        self._constants = _Constants()
        self._opsets = model.opset_imports
        for value in model.graph.inputs:
            self._enter(value, ("input", value), dynamic=True)
        self._number_graph(model.graph)

    def of(self, value: ir.Value) -> int:
        """The number of a value; a value that is in no numbered graph gets a new one."""
        number = self._numbers.get(value)
        return number if number is not None else self._enter(value, ("unique", value), dynamic=True)

    def is_dynamic(self, value: ir.Value) -> bool:
        """Whether the value depends on an input of the model."""
        return self._dynamic.get(value, True)

    def producers(self, value: ir.Value) -> list[ir.Node]:
        """The nodes that produce a value of this value's number."""
        return self._producers.get(self.of(value), [])

    def alike(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> list[ir.Node]:
        """The nodes with the operator and attributes of a node of another graph, on values equal to these."""
        key = self._operation_key(node, inputs)
        number = self._keys.get((key, 0)) if inputs else None
        return self._producers.get(number, []) if number is not None else []

    def _operation_key(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> object:
        numbers = tuple(self.of(v) if v is not None else None for v in inputs)
        return node.op_identifier(), numbers, attributes_key(node)

    def _enter(self, value: ir.Value, key: object, *, dynamic: bool) -> int:
        number = self._keys.setdefault(key, len(self._keys))
        self._numbers[value] = number
        self._dynamic[value] = dynamic
        return number

    def _number_graph(self, graph: ir.Graph) -> None:
        waiting = [graph]
        while waiting:
            current = waiting.pop()
            for value in current.initializers.values():
                if value not in self._numbers:
                    self._enter(value, self._constants.key(value) or ("weight", value.name), dynamic=False)
            for node in current:
                subgraphs = [subgraph for _, subgraph in subgraphs_of(node)]
                self._number_node(node, bool(subgraphs))
                for subgraph in subgraphs:
                    for value in subgraph.inputs:
                        self._enter(value, ("input", value), dynamic=True)
                waiting.extend(subgraphs)

    def _number_node(self, node: ir.Node, has_subgraphs: bool) -> None:
        if self._passed_on and node.outputs and node.outputs[0] in self._passed_on:
            result, source = node.outputs[0], self._passed_on[node.outputs[0]]
            self._numbers[result], self._dynamic[result] = self.of(source), self.is_dynamic(source)
            return
        dynamic = has_subgraphs or any(self.is_dynamic(value) for value in node.inputs if value is not None)
        is_random = _draws_random_numbers(node.domain, node.op_type, self._opsets.get(node.domain, 1))
        if has_subgraphs or is_random or not node.inputs:
            key: object = ("unique", node)
        else:
            key = self._operation_key(node, node.inputs)
        for position, value in enumerate(node.outputs):
            constant = self._constants.key(value) if not node.inputs else None
            number = self._enter(value, constant or (key, position), dynamic=dynamic)
            self._producers.setdefault(number, []).append(node)


@functools.cache
def _draws_random_numbers(domain: str, operator: str, opset: int) -> bool:
    """Whether an operator of ONNX takes a seed: without one, two such nodes return different numbers for one input."""
    known = onnx.defs.has(operator, opset, domain)
    return known and "seed" in onnx.defs.get_schema(operator, opset, domain).attributes


class _Constants:
    """Which values are constants, and their content."""

    def __init__(self) -> None:
        # The operators, each with its only attribute, for which onnx_ir returned that attribute as the output.
        self._constant_operators: set[object] = set()

    def key(self, value: ir.Value) -> object | None:
        """The content of a constant as a key; None if it is large, unknown or in another file."""
        tensor = self._tensor(value)
        if tensor is None or isinstance(tensor, ir.ExternalTensor) or tensor.dtype == ir.DataType.STRING:
            return None
        if tensor.nbytes > SMALL_TENSOR_BYTES:
            return None
        return ("constant", tensor.dtype, tuple(tensor.shape), tensor.tobytes())

    def _tensor(self, value: ir.Value) -> ir.TensorProtocol | None:
        node = value.producer()
        if value.const_value is not None or node is None or len(node.attributes) != 1:
            return ir.convenience.get_const_tensor(value)
        name, attribute = next(iter(node.attributes.items()))
        if attribute.is_ref() or attribute.type != ir.AttributeType.TENSOR:
            return ir.convenience.get_const_tensor(value)
        # onnx_ir is called once for each operator: its check of the tensor's type takes longer than all else here.
        operator = (node.op_identifier(), len(node.outputs), name)
        if operator in self._constant_operators:
            content: ir.TensorProtocol = attribute.value
            return content
        tensor = ir.convenience.get_const_tensor(value)
        if tensor is not None and tensor is attribute.value:
            self._constant_operators.add(operator)
        return tensor


def attributes_key(node: ir.Node) -> object:
    """The attributes of a node without its subgraphs, in a form that can be compared."""
    return tuple(sorted((name, _attribute_key(attribute)) for name, attribute in node.attributes.items()))


def _attribute_key(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
        tensor = attribute.value
        if tensor.dtype != ir.DataType.STRING and tensor.nbytes > SMALL_TENSOR_BYTES:
            # Too large to compare: equal only to itself.
            return f"tensor {id(tensor)}"
    return attribute_text(attribute)
