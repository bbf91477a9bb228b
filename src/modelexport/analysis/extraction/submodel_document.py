"""Builds the hierarchy document of a submodel from that of the full model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import msgspec
import onnx_ir as ir

from modelexport.analysis.extraction.call_boundary import ExtractionPlan, ExtractionPlanner
from modelexport.graph import graph_hash, nodes_with_ids, operation, tensors_with_ids
from modelexport.hierarchy import (
    BoundaryTensor,
    CallRecord,
    ExtractionRecord,
    HierarchyDocument,
    ModuleRecord,
    NodeRecord,
    Producer,
    TensorInfo,
    TensorRecord,
    ancestor_paths,
)
from modelexport.storage import tensor_records

_ADDED = "added by the extraction for the inputs and outputs of the submodel"


class Port(msgspec.Struct, frozen=True):
    """An input or output of a submodel.

    Attributes:
        name: Its name in the submodel.
        argument: The forward argument or the field of the result; None for a tensor that is neither.
        tensor: The tensor of the full graph that it was.
        type: Its element type, if known.
        shape: Its shape, if known: sizes, names of dynamic axes, and None for dynamic axes without a name.
    """

    name: str
    argument: str | None
    tensor: str
    type: str | None
    shape: tuple[int | str | None, ...] | None


@dataclasses.dataclass(frozen=True)
class DocumentBuilder:
    """Builds the document of one submodel.

    `originals` are the records of the full model's nodes by node of the submodel, `copies` the values of the submodel
    by value of the full model.
    """

    planner: ExtractionPlanner
    plan: ExtractionPlan
    originals: Mapping[ir.Node, NodeRecord]
    copies: Mapping[ir.Value, ir.Value]

    def build(self, model: ir.Model, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> HierarchyDocument:
        """The document of the submodel."""
        source = self.planner.document
        nodes = nodes_with_ids(model)
        call = self.plan.call
        added = NodeRecord("", "", call.id, call.tag, "inferred", 1.0, _ADDED)
        # Functions are copied whole, so that the ids of their nodes stay the same.
        whole = {node for function in model.functions.values() for node in function.all_nodes()}
        records = tuple(
            msgspec.structs.replace(
                self.planner.node_records[identity] if node in whole else self.originals.get(node, added),
                id=identity,
                op=operation(node),
            )
            for identity, node in nodes
        )
        calls = self._calls(records, inputs, outputs)
        order = self.planner.module_order
        paths = {path for kept in calls for path in (kept.path, *ancestor_paths(kept.path))} & order.keys()
        document = msgspec.structs.replace(
            source,
            producer=Producer(),
            graph_hash=graph_hash(model),
            modules=tuple(source.modules[place] for place in sorted(order[path] for path in paths)),
            calls=calls,
            nodes=records,
            tensors=(),
            extracted=ExtractionRecord(call.id, source.graph_hash, self.plan.notes),
        )
        tensors = tensor_records(tensors_with_ids(model, nodes), records, document.tree(), self._axes())
        kept_calls = {kept.id for kept in calls}
        return msgspec.structs.replace(
            document,
            modules=self._with_present_weights(document.modules, tensors),
            tensors=tuple(self._with_producer(tensor, kept_calls) for tensor in tensors),
        )

    def _with_present_weights(
        self, modules: tuple[ModuleRecord, ...], tensors: Iterable[TensorRecord]
    ) -> tuple[ModuleRecord, ...]:
        """Modules outside the extracted call, such as its ancestors, keep the weights that the submodel contains."""
        inside = {self.planner.calls[call].path for call in self.planner.calls_inside(self.plan.call.id)}
        present = {tensor.parameter for tensor in tensors if tensor.parameter is not None}

        def kept(module: ModuleRecord, infos: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
            paths = (module.path, *module.aliases)
            return {
                name: info
                for name, info in infos.items()
                if any((f"{path}.{name}" if path else name) in present for path in paths)
            }

        return tuple(
            module
            if module.path in inside
            else msgspec.structs.replace(
                module, parameters=kept(module, module.parameters), buffers=kept(module, module.buffers)
            )
            for module in modules
        )

    def _with_producer(self, tensor: TensorRecord, calls: set[str]) -> TensorRecord:
        """A weight that constant folding computed keeps its producer, where that call is in the submodel too."""
        producer = self.planner.folded_by.get(tensor.id) if tensor.source == "weight" else None
        return tensor if producer not in calls else msgspec.structs.replace(tensor, producer=producer)

    def _axes(self) -> dict[str, str]:
        recorded = self.planner.axis_records
        return {
            str(copy.name): axis
            for value, copy in self.copies.items()
            if (record := recorded.get(self.planner.tensor_id(value))) is not None and (axis := record.axis) is not None
        }

    def _calls(
        self, nodes: Iterable[NodeRecord], inputs: tuple[Port, ...], outputs: tuple[Port, ...]
    ) -> tuple[CallRecord, ...]:
        """The calls inside, those that copied nodes belong to, and the callers of both, with the submodel's tensors."""
        source = self.planner.calls
        inside = self.planner.calls_inside(self.plan.call.id)
        kept = set(inside)
        for node in nodes:
            kept.update((node.module, *node.contributors, *node.context))
        for name in list(kept):
            parent = source[name].parent
            while parent is not None and parent not in kept:
                kept.add(parent)
                parent = source[parent].parent
        names = {self.planner.tensor_id(value): copy.name for value, copy in self.copies.items()}

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
        for record in sorted((source[name] for name in kept), key=lambda kept: self.planner.call_order[kept.id]):
            if record.id == self.plan.call.id:
                boundary = own(inputs, record.inputs), own(outputs, record.outputs)
            elif record.id in inside:
                boundary = in_submodel(record.inputs), in_submodel(record.outputs)
            else:
                boundary = (), ()
            found.append(msgspec.structs.replace(record, inputs=boundary[0], outputs=boundary[1]))
        return tuple(found)
