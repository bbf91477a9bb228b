"""Builds the submodel of an extraction plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from typing import TypeVar

import onnx_ir as ir

from modelexport.analysis.extraction.call_boundary import AxisSize, BoundaryValue, ExtractionPlan, ExtractionPlanner
from modelexport.analysis.extraction.submodel_document import DocumentBuilder, Port
from modelexport.errors import ExtractionError
from modelexport.graph import ELEMENT_TYPES, subgraphs_of
from modelexport.hierarchy import (
    CallRecord,
    HierarchyDocument,
    NodeRecord,
)
from modelexport.storage import remove_hierarchy, write_stores

_Copy = TypeVar("_Copy")


@dataclasses.dataclass(frozen=True)
class Submodel:
    """A module call as a model of its own, with the hierarchy in its nodes, and notes for users."""

    call: CallRecord
    model: ir.Model
    document: HierarchyDocument
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    notes: tuple[str, ...]


class SubmodelBuilder:
    """Builds the submodel of a plan. It shares the weights with the model it comes from, and nothing else."""

    def __init__(self, planner: ExtractionPlanner, plan: ExtractionPlan) -> None:
        self._planner = planner
        self._plan = plan
        # Each tensor enters once, however many arguments it is passed as.
        self._entering = list(dict.fromkeys(t.value for t in plan.inputs))
        self._originals: dict[ir.Node, NodeRecord] = {}
        self._copies: dict[ir.Value, ir.Value] = {}

    def build(self) -> Submodel:
        """The submodel; called once."""
        graph = self._copy_graph()
        inputs = self._name_inputs(graph)
        self._add_sizes(graph)
        outputs = self._name_outputs(graph)
        source = self._planner.model
        model = ir.Model(
            graph,
            ir_version=source.ir_version,
            producer_name=source.producer_name,
            producer_version=source.producer_version,
            domain=source.domain,
            model_version=source.model_version,
            doc_string=source.doc_string,
            functions=[self._cloned(function.clone) for function in self._functions()],
            metadata_props=dict(source.metadata_props),
        )
        document = DocumentBuilder(self._planner, self._plan, self._originals, self._copies).build(
            model, inputs, outputs
        )
        remove_hierarchy(model)
        write_stores(model, document)
        return Submodel(self._plan.call, model, document, inputs, outputs, self._plan.notes)

    def _copy_graph(self) -> ir.Graph:
        plan = self._plan
        given = [*self._entering, *(size.value for size in plan.sizes)]
        kept = set(plan.slice.initializers)
        results = list(dict.fromkeys(t.value for t in plan.outputs))
        # An output that no node here produces is an input or an initializer, and is passed through.
        made = {value for node in plan.slice.nodes for value in node.outputs}
        view = ir.GraphView(
            given,
            [value for value in results if value in made],
            nodes=plan.slice.nodes,
            initializers=[value for value in kept if value not in given],
            name=plan.call.id or self._planner.model.graph.name,
            opset_imports=self._planner.model.graph.opset_imports,
        )
        graph = self._cloned(view.clone)
        self._copies.update(zip(given, graph.inputs, strict=True))
        self._copies.update({value: graph.initializers[str(value.name)] for value in kept if value not in given})
        for node, copy in _paired(zip(plan.slice.nodes, graph, strict=True)):
            self._originals[copy] = self._planner.records[node]
            self._copies.update(zip(node.outputs, copy.outputs, strict=True))
        return graph

    def _cloned(self, clone: Callable[[], _Copy]) -> _Copy:
        try:
            return clone()
        except Exception as error:
            raise ExtractionError(
                self._plan.call.id,
                "invalid_graph",
                "the graph around it consumes a tensor that no node produces; modelexport validate names the node",
            ) from error

    def _name_inputs(self, graph: ir.Graph) -> tuple[Port, ...]:
        values: list[ir.Value] = []
        for tensor in self._plan.inputs:
            copy = self._copies[tensor.value]
            if copy.producer() is not None:
                raise ExtractionError(
                    self._plan.call.id,
                    "unknown_boundary",
                    f"its input {tensor.name!r} is recorded as {self._planner.tensor_id(tensor.value)}, which one of "
                    "its own subgraphs produces: the hierarchy was changed, or describes another graph; export again",
                )
            if copy in values:
                copy = ir.Value(type=copy.type, shape=copy.shape)
            # A weight that was passed as an argument is an input here, without content.
            copy.const_value = None
            if tensor.is_replacement:
                # The argument takes the place of its replacement, whose shape may differ.
                copy.shape = None
            values.append(copy)
        return self._set_boundary(graph, graph.inputs, values, self._plan.inputs, set())

    def _set_boundary(
        self,
        graph: ir.Graph,
        boundary: MutableSequence[ir.Value],
        values: Sequence[ir.Value],
        tensors: Iterable[BoundaryValue],
        taken: set[str],
    ) -> tuple[Port, ...]:
        """Make these values the inputs or outputs of the graph, with types and names."""
        ports: list[Port] = []
        for value, tensor in zip(values, tensors, strict=True):
            self._describe(value, tensor)
            argument = tensor.name if tensor.is_argument else None
            name = _unique(tensor.name, taken)
            dtype = None if value.dtype is None else value.dtype.name.lower()
            shape = None
            if value.shape is not None:
                shape = tuple(size if isinstance(size, int) else size.value for size in value.shape)
            ports.append(Port(name, argument, self._planner.tensor_id(tensor.value), dtype, shape))
        boundary.clear()
        boundary.extend(values)
        self._rename(graph, {value: port.name for value, port in zip(values, ports, strict=True)})
        return tuple(ports)

    def _describe(self, value: ir.Value, tensor: BoundaryValue) -> None:
        """Set the type and shape that the graph does not give, from what was recorded at the call."""
        info = tensor.info or self._planner.infos.get(self._planner.tensor_id(tensor.value))
        if value.type is None:
            if info is None or info.dtype not in ELEMENT_TYPES:
                raise ExtractionError(
                    self._plan.call.id,
                    "unknown_boundary",
                    f"neither the graph nor the hierarchy has the type of {tensor.name!r}: "
                    "infer the shapes of the model first (onnx.shape_inference)",
                )
            value.type = ir.TensorType(ELEMENT_TYPES[info.dtype])
        if value.shape is None and info is not None:
            # Where dynamic axes have no names, recorded sizes are those of the example inputs: only the rank is valid.
            value.shape = ir.Shape([size if self._planner.has_fixed_sizes else None for size in info.shape])

    def _add_sizes(self, graph: ir.Graph) -> None:
        """Compute the sizes of axes from the submodel's own inputs."""
        for size in self._plan.sizes:
            nodes = self._size_nodes(size)
            if len(graph):
                graph.insert_before(graph[0], nodes)
            else:
                graph.extend(nodes)
            computed = nodes[-1].outputs[0]
            ir.convenience.replace_all_uses_with(self._copies[size.value], computed)
            self._copies[size.value] = computed

    def _size_nodes(self, size: AxisSize) -> list[ir.Node]:
        source = self._copies[size.source]
        shape = ir.Node(
            "",
            "Shape",
            [source],
            [ir.AttrInt64("start", size.axis), ir.AttrInt64("end", size.axis + 1)],
            name=f"{size.value.name}_shape",
        )
        nodes = [shape]
        if size.value.shape is not None and len(size.value.shape) == 0:
            shape.outputs[0].name = f"{size.value.name}_shape"
            nodes.append(ir.Node("", "Squeeze", [shape.outputs[0]], name=f"{size.value.name}_squeeze"))
        last = nodes[-1].outputs[0]
        last.name = size.value.name
        last.type, last.shape = size.value.type, size.value.shape
        return nodes

    def _name_outputs(self, graph: ir.Graph) -> tuple[Port, ...]:
        taken = {str(value.name) for value in graph.inputs}
        entered = set(graph.inputs) | set(graph.initializers.values())
        values: list[ir.Value] = []
        for tensor in self._plan.outputs:
            value = self._copies[tensor.value]
            if value in entered or value in values:
                node = ir.Node("", "Identity", [value], name=f"{tensor.name}_passed_through")
                node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
                graph.append(node)
                value = node.outputs[0]
            values.append(value)
        return self._set_boundary(graph, graph.outputs, values, self._plan.outputs, taken)

    def _rename(self, graph: ir.Graph, names: Mapping[ir.Value, str]) -> None:
        """Give values their names; other values that have one of these names, in subgraphs too, get a new one."""
        taken = set(names.values())
        every = [*graph.inputs, *graph.initializers.values()]
        for node in graph.all_nodes():
            every.extend(node.outputs)
            every.extend(
                value
                for _, subgraph in subgraphs_of(node)
                for value in (*subgraph.inputs, *subgraph.initializers.values())
            )
        used = {value.name for value in every if value.name} | taken
        for value in every:
            if value.name in taken and names.get(value) != value.name and value not in names:
                value.name = _unique(f"{value.name}_inside", used)
        for value, name in names.items():
            value.name = f"{name}\0"
        for value, name in names.items():
            value.name = name

    def _functions(self) -> Iterator[ir.Function]:
        """The local functions that the nodes call, and those that these call."""
        functions = self._planner.model.functions
        waiting = list(self._originals)
        found: set[ir.OperatorIdentifier] = set()
        while waiting:
            key = waiting.pop().op_identifier()
            if key in functions and key not in found:
                found.add(key)
                waiting.extend(functions[key].all_nodes())
        yield from (function for key, function in functions.items() if key in found)


def _paired(pairs: Iterable[tuple[ir.Node, ir.Node]]) -> Iterator[tuple[ir.Node, ir.Node]]:
    """Nodes and their copies, those of subgraphs included."""
    waiting = [iter(pairs)]
    while waiting:
        pair = next(waiting[-1], None)
        if pair is None:
            waiting.pop()
            continue
        yield pair
        for (_, one), (_, other) in zip(subgraphs_of(pair[0]), subgraphs_of(pair[1]), strict=True):
            waiting.append(zip(one, other, strict=True))


def _unique(name: str, taken: set[str]) -> str:
    found, copies = name, 1
    while found in taken or not found:
        found = f"{name}_{copies}"
        copies += 1
    taken.add(found)
    return found
