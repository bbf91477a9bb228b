"""Where a module call can be extracted from a graph: its boundary there, the nodes between, or why it cannot be."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

import onnx_ir as ir

from modelexport.analysis.extraction.backward_slice import Slice, Slicer, input_dependent_values, values_leaving
from modelexport.errors import ExtractionError
from modelexport.graph import GraphTensor, nodes_with_ids, subgraphs_of, tensors_with_ids
from modelexport.hierarchy import BoundaryTensor, CallRecord, HierarchyDocument, NodeRecord, TensorInfo, TensorRecord

# How many calls a message names.
_NAMED_CALLS = 5


@dataclasses.dataclass(frozen=True)
class BoundaryValue:
    """A tensor of the graph at the boundary of a call.

    Attributes:
        name: The forward argument or the result's field; for a tensor that is neither, its name in the graph.
        value: The tensor.
        is_argument: Whether it is one of the call's own arguments or results.
        info: Its shape and type as recorded at the call, where they were.
        is_replacement: Whether the graph no longer has the argument itself, and `value` is consumed in its place.
    """

    name: str
    value: ir.Value
    is_argument: bool = True
    info: TensorInfo | None = None
    is_replacement: bool = False


@dataclasses.dataclass(frozen=True)
class AxisSize:
    """A tensor that holds the size of an axis, and the input of the call that has this axis."""

    value: ir.Value
    source: ir.Value
    axis: int


@dataclasses.dataclass(frozen=True)
class ExtractionPlan:
    """A call with its boundary in the graph and the nodes between; sizes are computed from the axes of the inputs."""

    call: CallRecord
    inputs: tuple[BoundaryValue, ...]
    outputs: tuple[BoundaryValue, ...]
    slice: Slice
    sizes: tuple[AxisSize, ...] = ()
    notes: tuple[str, ...] = ()


class ExtractionPlanner:
    """Plans the extraction of calls from one model. The model must not change meanwhile.

    What all plans need is indexed once, so that the cost of a plan depends on the size of the call alone.
    """

    def __init__(self, model: ir.Model, document: HierarchyDocument) -> None:
        self.model = model
        self.document = document
        self.calls = {call.id: call for call in document.calls}
        self.node_records = {record.id: record for record in document.nodes}
        self.nodes = nodes_with_ids(model)
        self.records: dict[ir.Node, NodeRecord] = {node: self.node_records[identity] for identity, node in self.nodes}
        self._calls_of = {node: {r.module, *r.contributors} for node, r in self.records.items()}
        self._slicer = Slicer(self.records)
        self._inside: dict[str, frozenset[str]] = {}
        self._can_be_planned: dict[str, bool] = {}
        self._order = {node: place for place, node in enumerate(self.records)}

    @functools.cached_property
    def _nodes_of_call(self) -> dict[str, list[ir.Node]]:
        nodes: dict[str, list[ir.Node]] = {}
        for node, calls in self._calls_of.items():
            for call in calls:
                nodes.setdefault(call, []).append(node)
        return nodes

    @functools.cached_property
    def _tensors(self) -> list[GraphTensor]:
        return tensors_with_ids(self.model, self.nodes)

    @functools.cached_property
    def values(self) -> dict[str, ir.Value]:
        """The graph's tensors by id."""
        return {tensor.id: tensor.value for tensor in reversed(self._tensors)}

    @functools.cached_property
    def tensor_ids(self) -> dict[ir.Value, str]:
        """The ids of the graph's tensors."""
        # Not `values` inverted: an invalid file may give one name to two tensors, and `values` has one of them.
        return {tensor.value: tensor.id for tensor in self._tensors}

    def tensor_id(self, value: ir.Value) -> str:
        """The id of a tensor; its name for one that is in none of the graphs of an invalid file."""
        return self.tensor_ids.get(value, value.name or "")

    @functools.cached_property
    def node_ids(self) -> dict[ir.Node, str]:
        """The ids of the graph's nodes."""
        return {node: identity for identity, node in self.nodes}

    @functools.cached_property
    def infos(self) -> dict[str, TensorInfo]:
        """Shape and type of the tensors at the boundary of some call."""
        return {
            tensor.tensor: tensor.info
            for call in self.document.calls
            for tensor in (*call.inputs, *call.outputs)
            if tensor.tensor is not None and tensor.info is not None
        }

    @functools.cached_property
    def has_fixed_sizes(self) -> bool:
        """Whether the recorded shapes are valid for all inputs: no axis is dynamic, or the dynamic ones have names."""
        named = any(isinstance(size, str) for info in self.infos.values() for size in info.shape)
        return named or all(
            value.shape is not None and all(isinstance(size, int) for size in value.shape)
            for value in self.model.graph.inputs
        )

    @functools.cached_property
    def folded_by(self) -> dict[str, str]:
        """The calls that computed initializers, for those that constant folding produced."""
        return {
            record.id: record.producer
            for record in self.document.tensors
            if record.source == "weight" and record.producer is not None
        }

    @functools.cached_property
    def axis_records(self) -> dict[str, TensorRecord]:
        """The tensors that hold the size of a dynamic axis."""
        return {record.id: record for record in self.document.tensors if record.axis is not None}

    @functools.cached_property
    def module_order(self) -> dict[str, int]:
        """The position of each module in the document."""
        return {module.path: place for place, module in enumerate(self.document.modules)}

    @functools.cached_property
    def call_order(self) -> dict[str, int]:
        """The position of each call in the document."""
        return {call.id: place for place, call in enumerate(self.document.calls)}

    @functools.cached_property
    def _input_dependent(self) -> set[ir.Value]:
        return input_dependent_values(self.model, list(self.records))

    @functools.cached_property
    def _children(self) -> dict[str, list[str]]:
        children: dict[str, list[str]] = {}
        for call in self.document.calls:
            if call.parent is not None:
                children.setdefault(call.parent, []).append(call.id)
        return children

    def consumed(self, node: ir.Node) -> tuple[ir.Value, ...]:
        """The values a node consumes, those that its subgraphs consume included."""
        return self._slicer.consumed(node)

    def calls_inside(self, call: str) -> frozenset[str]:
        """The call and all that ran inside it."""
        if call not in self._inside:
            found: dict[str, None] = {call: None}
            waiting = [call]
            while waiting:
                fresh = [child for child in self._children.get(waiting.pop(), ()) if child not in found]
                found.update(dict.fromkeys(fresh))
                waiting.extend(fresh)
            self._inside[call] = frozenset(found)
        return self._inside[call]

    def plan(self, call: CallRecord) -> ExtractionPlan:
        """The plan for one call."""
        try:
            return self._plan(call)
        except ExtractionError as error:
            if error.reason not in ("fused", "unknown_boundary"):
                raise
            enclosing = self._smallest_around(call)
            if enclosing is None:
                raise
            hint = f"The smallest module call around it that can be extracted is {_shown(enclosing)}"
            raise ExtractionError(
                error.target, error.reason, f"{error.explanation}. {hint}", error.fused_with, enclosing
            ) from None

    def _smallest_around(self, call: CallRecord) -> str | None:
        # Planned once for all the calls inside: the root has every node.
        known = self._can_be_planned
        for parent in self._callers(call):
            if parent.id not in known:
                try:
                    self._plan(parent)
                    known[parent.id] = True
                except ExtractionError:
                    known[parent.id] = False
            if known[parent.id]:
                return parent.id
        return None

    def _callers(self, call: CallRecord) -> Iterable[CallRecord]:
        # Callers form no cycle: that is checked when a document is decoded.
        while call.parent is not None:
            call = self.calls[call.parent]
            yield call

    def _plan(self, call: CallRecord) -> ExtractionPlan:
        own = {node for inner in self.calls_inside(call.id) for node in self._nodes_of_call.get(inner, ())}
        if not call.inputs and not call.outputs:
            return self._plan_by_flow(call, own)
        inputs, lost_inputs = self._found(call.inputs)
        outputs, lost_outputs = self._found(call.outputs)
        self._check_work(call, own, inputs, outputs)
        if not outputs:
            raise self._fused(call, own, "the graph no longer has any of its results")
        given = {tensor.value for tensor in inputs}
        found = self._slicer.backward([tensor.value for tensor in outputs], given, own.__contains__)
        sizes: tuple[AxisSize, ...] = ()
        if found.extra_inputs:
            sizes = self._axis_sizes(inputs)
            computed = {size.value for size in sizes}
            found = self._slicer.backward([t.value for t in outputs], given | computed, own.__contains__)
            sizes = tuple(size for size in sizes if size.value in found.used_inputs)
        self._check_complete(call, inputs, lost_inputs, found)
        notes = [f"the graph does not compute the result {name!r}" for name in lost_outputs]
        if found.extra_inputs:
            extra = [BoundaryValue(value.name or "", value, is_argument=False) for value in found.extra_inputs]
            inputs = [*inputs, *extra]
            names = ", ".join(repr(tensor.name) for tensor in extra)
            notes.append(f"it also consumes {names}, which is not among its arguments")
        return ExtractionPlan(call, tuple(inputs), tuple(outputs), found, sizes, tuple(notes))

    def _found(self, boundary: tuple[BoundaryTensor, ...]) -> tuple[list[BoundaryValue], list[str]]:
        """The boundary tensors that the graph has, and the names of those it no longer has."""
        found: list[BoundaryValue] = []
        lost: list[str] = []
        own = {tensor.tensor for tensor in boundary}
        for tensor in boundary:
            # A tensor that is itself an argument cannot replace another one.
            other = tensor.stand_in if tensor.stand_in not in own and tensor.info is not None else None
            value = self.values.get(tensor.tensor or "") or self.values.get(other or "")
            if value is None:
                lost.append(tensor.name)
            else:
                is_replacement = tensor.tensor not in self.values
                found.append(BoundaryValue(tensor.name, value, info=tensor.info, is_replacement=is_replacement))
        return found, lost

    def _check_work(
        self, call: CallRecord, own: set[ir.Node], inputs: list[BoundaryValue], outputs: list[BoundaryValue]
    ) -> None:
        given = {tensor.value for tensor in inputs}
        if own or any(tensor.value not in given for tensor in outputs):
            return
        how = "it returned its arguments"
        if not outputs:
            how = "none of its nodes is in the graph: no output of the model needs them, or they were folded"
        raise ExtractionError(call.id, "no_operation", f"this call ran no operation: {how}")

    def _check_complete(self, call: CallRecord, inputs: list[BoundaryValue], lost: list[str], found: Slice) -> None:
        """Refuse a slice that runs past the call's own arguments because the graph no longer has them."""
        foreign = [n for n in found.nodes if self.records[n].kind == "fused" and self._other_calls(call, n)]
        if lost and (found.extra_inputs or foreign):
            raise self._fused(call, found.nodes, f"the graph no longer has its input {lost[0]!r}", found.extra_inputs)
        if found.extra_inputs:
            for tensor in inputs:
                if tensor.value not in found.used_inputs and self._slicer.depends_on(tensor.value, found.extra_inputs):
                    what = f"the graph computes its result without its input {tensor.name!r}"
                    raise self._fused(call, found.nodes, what, found.extra_inputs)

    def _other_calls(self, call: CallRecord, node: ir.Node) -> set[str]:
        """The calls that a node works for besides this one; its callers only where there are no others."""
        others = self._calls_of[node] - self.calls_inside(call.id)
        callers = {call.id, *(caller.id for caller in self._callers(call))}
        return others - callers or others

    def _fused(
        self, call: CallRecord, nodes: Iterable[ir.Node], what: str, extra: Iterable[ir.Value] = ()
    ) -> ExtractionError:
        fused_with: set[str] = set()
        nodes = list(nodes)
        for node in nodes:
            if self.records[node].kind == "fused":
                fused_with |= self._other_calls(call, node)
        if not fused_with:
            # No node is recorded as fused: list the calls that produce the extra inputs, or that consume the results.
            producers = [producer for value in extra if (producer := value.producer()) is not None]
            produced = [value for node in nodes for value in node.outputs]
            produced = [value for value in produced if value in self._input_dependent] or produced
            for node in producers or [use.node for value in produced for use in value.uses()]:
                fused_with |= self._other_calls(call, node)
        named = sorted(fused_with, key=lambda c: (len(c), c))
        shown = ", ".join(_shown(c) for c in named[:_NAMED_CALLS]) + (", …" if len(named) > _NAMED_CALLS else "")
        return ExtractionError(call.id, "fused", f"{what}: it is fused with {shown or 'its neighbours'}", named)

    def _axis_sizes(self, inputs: list[BoundaryValue]) -> tuple[AxisSize, ...]:
        """Tensors that hold the size of a dynamic axis which an input has too."""
        axes: dict[str, tuple[ir.Value, int]] = {}
        for tensor in inputs:
            for place, size in enumerate(tensor.info.shape if tensor.info is not None else ()):
                if isinstance(size, str):
                    axes.setdefault(size, (tensor.value, place))
        found = []
        for identity, record in self.axis_records.items():
            value = self.values.get(identity)
            if record.axis in axes and value is not None and _is_integer_scalar(value):
                found.append(AxisSize(value, *axes[record.axis]))
        return tuple(found)

    def _plan_by_flow(self, call: CallRecord, own: set[ir.Node]) -> ExtractionPlan:
        """The plan for a call whose boundary was not recorded: the tensors that flow in and out of its nodes."""
        if not own:
            explanation = "this call ran no operation: none of its nodes is in the graph"
            raise ExtractionError(call.id, "no_operation", explanation)
        owned = {inner for node in own for _, subgraph in subgraphs_of(node) for inner in subgraph.all_nodes()}
        top = sorted(own - owned, key=self._order.__getitem__)
        foreign = [n for n in top if self.records[n].kind == "fused" and self._other_calls(call, n)]
        if foreign:
            what = "its boundary was not recorded, and its nodes also do the work of other calls"
            raise self._fused(call, foreign, what)
        outputs = values_leaving(top, own.__contains__, self._calls_of)
        if not outputs:
            explanation = "its boundary was not recorded, and no tensor leaves its nodes"
            raise ExtractionError(call.id, "unknown_boundary", explanation)
        entering: dict[ir.Value, None] = {}
        for node in top:
            for value in self._slicer.consumed(node):
                if value in self._input_dependent and value.producer() not in own:
                    entering[value] = None
        found = self._slicer.backward(outputs, entering, own.__contains__)
        module = self.document.modules[self.module_order[call.path]]
        arguments = [a.name for a in module.forward_arguments if a.required and not a.kind.startswith("var")]
        names = arguments if len(arguments) == len(entering) == 1 else [value.name or "" for value in entering]
        fields = ["output"] if len(outputs) == 1 else [value.name or "" for value in outputs]
        return ExtractionPlan(
            call,
            tuple(BoundaryValue(name, value) for name, value in zip(names, entering, strict=True)),
            tuple(BoundaryValue(name, value) for name, value in zip(fields, outputs, strict=True)),
            found,
            notes=(
                "the boundary of this call was not recorded: it is extracted where data enters and leaves its nodes",
            ),
        )


def _is_integer_scalar(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.INT64 and value.shape is not None and tuple(value.shape) in ((), (1,))


def _shown(call: str) -> str:
    return repr(call) if call else "the root"
