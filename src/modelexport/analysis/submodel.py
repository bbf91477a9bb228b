"""A cut as a model of its own, with the part of the document that describes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec
import onnx_ir as ir

from modelexport.analysis.cutting import AxisSize, Cut, CutTensor, Cutter
from modelexport.carriers import strip_hierarchy, write_stores
from modelexport.document import (
    CallRecord,
    ExtractionRecord,
    HierarchyDocument,
    NodeRecord,
    Producer,
    TensorRecord,
    tensor_records,
)
from modelexport.errors import ExtractionError
from modelexport.graph import graph_bodies, graph_hash, identified_nodes, identified_tensors, operation
from modelexport.hierarchy import BoundaryTensor, TensorInfo, ancestor_paths

_ADDED = "added when the module was cut out, for its inputs and results"

_Copy = TypeVar("_Copy")


@dataclasses.dataclass(frozen=True)
class Port:
    """An input or output of a submodel.

    Attributes:
        name: Its name in the submodel.
        argument: The forward argument or the result's field; None for a tensor that is neither.
        tensor: The tensor of the graph it was cut out of.
    """

    name: str
    argument: str | None
    tensor: str


@dataclasses.dataclass(frozen=True)
class Submodel:
    """A module call as a model of its own.

    Attributes:
        call: The call.
        model: The model, its hierarchy in its nodes.
        document: The same hierarchy with everything else known of it.
        inputs: Its inputs, in order.
        outputs: Its outputs, in order.
        notes: What is to be known about it, in words.
    """

    call: CallRecord
    model: ir.Model
    document: HierarchyDocument
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    notes: tuple[str, ...]


def build_submodel(cutter: Cutter, cut: Cut) -> Submodel:
    """The model of a cut. It shares the weights with the model it comes from, and nothing else."""
    return _Builder(cutter, cut).build()


class _Builder:
    def __init__(self, cutter: Cutter, cut: Cut) -> None:
        self._cutter = cutter
        self._cut = cut
        # Each tensor enters once, however many arguments it was given for.
        self._entering = list(dict.fromkeys(t.value for t in (*cut.inputs,)))
        self._originals: dict[ir.Node, NodeRecord] = {}
        self._copies: dict[ir.Value, ir.Value] = {}
        named = any(isinstance(size, str) for info in cutter.infos.values() for size in info.shape)
        self._fixed = named or all(_is_fixed(value) for value in cutter.model.graph.inputs)

    def build(self) -> Submodel:
        graph = self._copy_graph()
        inputs = self._name_inputs(graph)
        self._add_sizes(graph)
        outputs = self._name_outputs(graph)
        source = self._cutter.model
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
        document = self._document(model, inputs, outputs)
        model = strip_hierarchy(model)
        write_stores(model, document)
        return Submodel(self._cut.call, model, document, inputs, outputs, self._cut.notes)

    def _copy_graph(self) -> ir.Graph:
        cut = self._cut
        given = [*self._entering, *(size.value for size in cut.sizes)]
        kept = set(cut.slice.weights)
        results = list(dict.fromkeys(t.value for t in cut.outputs))
        # Results that nothing here makes are passed on from an input or a weight; those come in as well.
        made = {value for node in cut.slice.nodes for value in node.outputs}
        view = ir.GraphView(
            given,
            [value for value in results if value in made],
            nodes=cut.slice.nodes,
            initializers=[value for value in kept if value not in given],
            name=cut.call.id or self._cutter.model.graph.name,
            opset_imports=self._cutter.model.graph.opset_imports,
        )
        graph = self._cloned(view.clone)
        self._copies.update(zip(given, graph.inputs, strict=True))
        self._copies.update({value: graph.initializers[str(value.name)] for value in kept if value not in given})
        for node, copy in _paired(zip(cut.slice.nodes, graph, strict=True)):
            self._originals[copy] = self._cutter.records[node]
            self._copies.update(zip(node.outputs, copy.outputs, strict=True))
        return graph

    def _cloned(self, clone: Callable[[], _Copy]) -> _Copy:
        try:
            return clone()
        except Exception as error:
            raise ExtractionError(
                self._cut.call.id,
                "broken_graph",
                "the graph around it reads a tensor that nothing makes, or reads it before it is made; "
                "modelexport validate names the place",
            ) from error

    def _name_inputs(self, graph: ir.Graph) -> tuple[Port, ...]:
        taken: set[str] = set()
        ports: list[Port] = []
        values: list[ir.Value] = []
        for tensor in self._cut.inputs:
            copy = self._copies[tensor.value]
            if copy.producer() is not None:
                raise ExtractionError(
                    self._cut.call.id,
                    "unknown_boundary",
                    f"its input {tensor.name!r} is said to be {self._identity(tensor.value)}, which is made in a body "
                    "that it holds: the hierarchy was changed, or is of another graph; export again",
                )
            if copy in values:
                copy = ir.Value(type=copy.type, shape=copy.shape)
            # A weight that was given as an argument is an input here, with no content of its own.
            copy.const_value = None
            name = _unique(tensor.name, taken)
            if tensor.is_stand_in:
                # The argument comes back in the place of what is read instead of it, and it looks like itself.
                copy.shape = None
            self._describe(copy, tensor)
            ports.append(Port(name, tensor.name if tensor.is_argument else None, self._identity(tensor.value)))
            values.append(copy)
        graph.inputs.clear()
        graph.inputs.extend(values)
        self._rename(graph, {value: port.name for value, port in zip(values, ports, strict=True)})
        return tuple(ports)

    def _describe(self, value: ir.Value, tensor: CutTensor) -> None:
        """Type and shape of an input, from what was recorded at the call where the graph does not say."""
        info = tensor.info or self._recorded(tensor.value)
        if value.type is None:
            if info is None or info.dtype not in _TYPES:
                raise ExtractionError(
                    self._cut.call.id,
                    "unknown_boundary",
                    f"neither the graph nor the hierarchy says what type its input {tensor.name!r} has: "
                    "infer the shapes of the model first (onnx.shape_inference)",
                )
            value.type = ir.TensorType(_TYPES[info.dtype])
        if value.shape is None and info is not None:
            # Sizes may be those of the example inputs: where axes are dynamic and have no names, only the rank is sure.
            value.shape = ir.Shape([size if self._fixed else None for size in info.shape])

    def _recorded(self, value: ir.Value) -> TensorInfo | None:
        """What is recorded of a tensor at any call."""
        name = self._identity(value)
        return self._infos.get(name)

    @property
    def _infos(self) -> Mapping[str, TensorInfo]:
        return self._cutter.infos

    def _add_sizes(self, graph: ir.Graph) -> None:
        """Make the sizes of axes from the submodel's own inputs."""
        for size in self._cut.sizes:
            nodes = self._size_nodes(size)
            first = next(iter(graph), None)
            if first is None:
                graph.extend(nodes)
            else:
                graph.insert_before(first, nodes)
            made = nodes[-1].outputs[0]
            ir.convenience.replace_all_uses_with(self._copies[size.value], made)
            self._copies[size.value] = made

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
        ports: list[Port] = []
        values: list[ir.Value] = []
        for tensor in self._cut.outputs:
            value = self._copies[tensor.value]
            if value in entered or value in values:
                node = ir.Node("", "Identity", [value], name=f"{tensor.name}_passed_on")
                node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
                graph.append(node)
                value = node.outputs[0]
            name = _unique(tensor.name, taken)
            self._describe(value, tensor)
            ports.append(Port(name, tensor.name if tensor.is_argument else None, self._identity(tensor.value)))
            values.append(value)
        graph.outputs.clear()
        graph.outputs.extend(values)
        self._rename(graph, {value: port.name for value, port in zip(values, ports, strict=True)})
        return tuple(ports)

    def _rename(self, graph: ir.Graph, names: Mapping[ir.Value, str]) -> None:
        """Give values their names; others that have one of them, in bodies too, get another."""
        taken = set(names.values())
        every = [*graph.inputs, *graph.initializers.values()]
        for node in graph.all_nodes():
            every.extend(node.outputs)
            every.extend(
                value for _, body in graph_bodies(node) for value in (*body.inputs, *body.initializers.values())
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
        functions = self._cutter.model.functions
        waiting = list(self._originals)
        found: set[ir.OperatorIdentifier] = set()
        while waiting:
            key = waiting.pop().op_identifier()
            if key in functions and key not in found:
                found.add(key)
                waiting.extend(functions[key].all_nodes())
        yield from (function for key, function in functions.items() if key in found)

    def _identity(self, value: ir.Value) -> str:
        return self._cutter.tensor_ids.get(value, value.name or "")

    def _document(self, model: ir.Model, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> HierarchyDocument:
        source = self._cutter.document
        nodes = identified_nodes(model)
        call = self._cut.call
        added = NodeRecord("", "", call.id, call.tag, "inferred", 1.0, _ADDED)
        # Functions come whole and under their own names, so that their nodes are known by these.
        whole = {node for function in model.functions.values() for node in function.all_nodes()}
        known = {record.id: record for record in source.nodes} if whole else {}
        records = tuple(
            msgspec.structs.replace(
                known[identity] if node in whole else self._originals.get(node, added),
                id=identity,
                op=operation(node),
            )
            for identity, node in nodes
        )
        calls = self._calls(records, inputs, outputs)
        paths = {path for kept in calls for path in (kept.path, *ancestor_paths(kept.path))}
        document = msgspec.structs.replace(
            source,
            producer=Producer(),
            graph_hash=graph_hash(model),
            modules=tuple(module for module in source.modules if module.path in paths),
            calls=calls,
            nodes=records,
            tensors=(),
            extracted=ExtractionRecord(call.id, source.graph_hash, self._cut.notes),
        )
        tensors = tensor_records(identified_tensors(model, nodes), records, document.tree(), self._axes())
        return msgspec.structs.replace(document, tensors=tuple(self._with_maker(tensor, calls) for tensor in tensors))

    def _with_maker(self, tensor: TensorRecord, calls: Iterable[CallRecord]) -> TensorRecord:
        """A weight that was computed when the graph was folded keeps who computed it, where that call is here too."""
        maker = self._cutter.makers.get(tensor.id) if tensor.source == "weight" else None
        if maker is None or all(call.id != maker for call in calls):
            return tensor
        return msgspec.structs.replace(tensor, producer=maker)

    def _axes(self) -> dict[str, str]:
        recorded = {record.id: record.axis for record in self._cutter.document.tensors if record.axis is not None}
        return {
            str(copy.name): recorded[identity]
            for value, copy in self._copies.items()
            if (identity := self._identity(value)) in recorded
        }

    def _calls(
        self, nodes: Iterable[NodeRecord], inputs: tuple[Port, ...], outputs: tuple[Port, ...]
    ) -> tuple[CallRecord, ...]:
        """The calls inside, those that copied nodes belong to, and the callers of both; in tensors of the submodel."""
        source = self._cutter.calls
        inside = self._cutter.calls_inside(self._cut.call.id)
        kept = set(inside)
        for node in nodes:
            kept.update((node.module, *node.contributors, *node.context))
        for name in list(kept):
            parent = source[name].parent
            while parent is not None and parent not in kept:
                kept.add(parent)
                parent = source[parent].parent
        names = {self._identity(value): copy.name for value, copy in self._copies.items()}

        def in_submodel(boundary: tuple[BoundaryTensor, ...]) -> tuple[BoundaryTensor, ...]:
            return tuple(
                BoundaryTensor(b.name, names.get(b.tensor) if b.tensor is not None else None, b.info) for b in boundary
            )

        def own(ports: tuple[Port, ...], boundary: tuple[BoundaryTensor, ...]) -> tuple[BoundaryTensor, ...]:
            infos = {b.name: b.info for b in boundary}
            return tuple(
                BoundaryTensor(p.argument, p.name, infos.get(p.argument)) for p in ports if p.argument is not None
            )

        found = []
        for record in self._cutter.document.calls:
            if record.id not in kept:
                continue
            if record.id == self._cut.call.id:
                boundary = own(inputs, record.inputs), own(outputs, record.outputs)
            elif record.id in inside:
                boundary = in_submodel(record.inputs), in_submodel(record.outputs)
            else:
                boundary = (), ()
            found.append(msgspec.structs.replace(record, inputs=boundary[0], outputs=boundary[1]))
        return tuple(found)


def _paired(pairs: Iterable[tuple[ir.Node, ir.Node]]) -> Iterator[tuple[ir.Node, ir.Node]]:
    """Nodes and their copies, those of bodies included."""
    waiting = [iter(pairs)]
    while waiting:
        pair = next(waiting[-1], None)
        if pair is None:
            waiting.pop()
            continue
        yield pair
        for (_, one), (_, other) in zip(graph_bodies(pair[0]), graph_bodies(pair[1]), strict=True):
            waiting.append(zip(one, other, strict=True))


def _unique(name: str, taken: set[str]) -> str:
    found, copies = name, 1
    while found in taken or not found:
        found = f"{name}_{copies}"
        copies += 1
    taken.add(found)
    return found


def _is_fixed(value: ir.Value) -> bool:
    return value.shape is not None and all(isinstance(size, int) for size in value.shape)


_TYPES = {
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "float32": ir.DataType.FLOAT,
    "float64": ir.DataType.DOUBLE,
    "complex64": ir.DataType.COMPLEX64,
    "complex128": ir.DataType.COMPLEX128,
    **{f"{kind}{bits}": ir.DataType[f"{kind.upper()}{bits}"] for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    "bool": ir.DataType.BOOL,
}
