"""Where a module call can be cut out of a graph: its boundary there, the slice between, or why there is none."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

import onnx_ir as ir

from modelexport.analysis.slicing import Slice, Slicer, depends_on_inputs, leaving
from modelexport.document import CallRecord, HierarchyDocument, NodeRecord
from modelexport.errors import ExtractionError
from modelexport.graph import graph_bodies, identified_nodes, identified_tensors
from modelexport.hierarchy import BoundaryTensor, TensorInfo

# How many calls a message names.
_NAMED_CALLS = 5


@dataclasses.dataclass(frozen=True)
class CutTensor:
    """A tensor at the edge of a cut.

    Attributes:
        name: The forward argument or the result's field; for a tensor that is neither, its name in the graph.
        value: The tensor.
        is_argument: Whether it is one of the call's own arguments or results.
        info: Its shape and type as recorded at the call, where they were.
        is_stand_in: Whether the argument itself is gone from the graph, and `value` is what is read in its place.
    """

    name: str
    value: ir.Value
    is_argument: bool = True
    info: TensorInfo | None = None
    is_stand_in: bool = False


@dataclasses.dataclass(frozen=True)
class AxisSize:
    """A tensor that holds the size of an axis, and the input of the call that has this axis."""

    value: ir.Value
    source: ir.Value
    axis: int


@dataclasses.dataclass(frozen=True)
class Cut:
    """A call with the tensors it is cut at and what lies between them.

    Attributes:
        call: The call.
        inputs: What enters.
        outputs: What leaves.
        slice: What lies between.
        sizes: Tensors that are to be made from the inputs' own axes.
        notes: What is to be known about this cut, in words.
    """

    call: CallRecord
    inputs: tuple[CutTensor, ...]
    outputs: tuple[CutTensor, ...]
    slice: Slice
    sizes: tuple[AxisSize, ...] = ()
    notes: tuple[str, ...] = ()


class Cutter:
    """Finds the cuts of one model's calls. The model must not change meanwhile."""

    def __init__(self, model: ir.Model, document: HierarchyDocument) -> None:
        self.model = model
        self.document = document
        self.calls = {call.id: call for call in document.calls}
        records = {record.id: record for record in document.nodes}
        self.nodes = identified_nodes(model)
        self.records: dict[ir.Node, NodeRecord] = {node: records[identity] for identity, node in self.nodes}
        self._served = {node: {r.module, *r.contributors} for node, r in self.records.items()}
        self._slicer = Slicer(model)
        self._inside: dict[str, frozenset[str]] = {}

    @functools.cached_property
    def values(self) -> dict[str, ir.Value]:
        """The graph's tensors by identity."""
        return {tensor.id: tensor.value for tensor in reversed(identified_tensors(self.model, self.nodes))}

    @functools.cached_property
    def tensor_ids(self) -> dict[ir.Value, str]:
        """The identities of the graph's tensors."""
        # Not `values` the other way round: in a file that names two tensors the same, it has one of them.
        return {tensor.value: tensor.id for tensor in identified_tensors(self.model, self.nodes)}

    @functools.cached_property
    def infos(self) -> dict[str, TensorInfo]:
        """Shape and type of the tensors that are at the boundary of some call."""
        return {
            tensor.tensor: tensor.info
            for call in self.document.calls
            for tensor in (*call.inputs, *call.outputs)
            if tensor.tensor is not None and tensor.info is not None
        }

    @functools.cached_property
    def makers(self) -> dict[str, str]:
        """The calls that computed weights, for weights that were computed when the graph was folded."""
        return {
            record.id: record.producer
            for record in self.document.tensors
            if record.source == "weight" and record.producer is not None
        }

    @functools.cached_property
    def _changing(self) -> set[ir.Value]:
        return depends_on_inputs(self.model)

    @functools.cached_property
    def _children(self) -> dict[str, list[str]]:
        children: dict[str, list[str]] = {}
        for call in self.document.calls:
            if call.parent is not None:
                children.setdefault(call.parent, []).append(call.id)
        return children

    def reads(self, node: ir.Node) -> tuple[ir.Value, ...]:
        """The values a node reads, those that its bodies read included."""
        return self._slicer.reads(node)

    def calls_inside(self, call: str) -> frozenset[str]:
        """The call and all that ran inside of it."""
        if call not in self._inside:
            found: dict[str, None] = {call: None}
            waiting = [call]
            while waiting:
                fresh = [child for child in self._children.get(waiting.pop(), ()) if child not in found]
                found.update(dict.fromkeys(fresh))
                waiting.extend(fresh)
            self._inside[call] = frozenset(found)
        return self._inside[call]

    def cut(self, call: CallRecord) -> Cut:
        """The cut of one call.

        Raises:
            ExtractionError: It cannot be cut out; says why, and what can be instead.
        """
        try:
            return self._attempt(call)
        except ExtractionError as error:
            if error.reason not in ("fused", "unknown_boundary"):
                raise
            enclosing = self._smallest_around(call)
            if enclosing is None:
                raise
            hint = f"The smallest module call around it that can be cut out is {_shown(enclosing)}"
            raise ExtractionError(
                error.target, error.reason, f"{error.explanation}. {hint}", error.fused_with, enclosing
            ) from None

    def _smallest_around(self, call: CallRecord) -> str | None:
        seen = {call.id}
        while call.parent is not None and call.parent not in seen:
            call = self.calls[call.parent]
            seen.add(call.id)
            try:
                self._attempt(call)
            except ExtractionError:
                continue
            return call.id
        return None

    def _attempt(self, call: CallRecord) -> Cut:
        inside = self.calls_inside(call.id)
        own = {node for node, served in self._served.items() if not served.isdisjoint(inside)}
        if not call.inputs and not call.outputs:
            return self._cut_by_flow(call, own)
        inputs, lost_inputs = self._found(call.inputs)
        outputs, lost_outputs = self._found(call.outputs)
        self._check_work(call, own, inputs, outputs)
        if not outputs:
            raise self._fused(call, own, "the graph no longer has any of its results", lost_outputs)
        given = {tensor.value for tensor in inputs}
        found = self._slicer.cut([tensor.value for tensor in outputs], given, own.__contains__)
        sizes: tuple[AxisSize, ...] = ()
        if found.further:
            sizes = self._axis_sizes(inputs)
            made = {size.value for size in sizes}
            found = self._slicer.cut([t.value for t in outputs], given | made, own.__contains__)
            sizes = tuple(size for size in sizes if size.value in found.reached)
        self._check_complete(call, own, inputs, lost_inputs, found)
        notes = [f"the graph does not compute the result {name!r}" for name in lost_outputs]
        if found.further:
            further = [CutTensor(value.name or "", value, is_argument=False) for value in found.further]
            inputs = [*inputs, *further]
            names = ", ".join(repr(tensor.name) for tensor in further)
            notes.append(f"it also reads {names}, which it is not given as an argument")
        return Cut(call, tuple(inputs), tuple(outputs), found, sizes, tuple(notes))

    def _found(self, boundary: tuple[BoundaryTensor, ...]) -> tuple[list[CutTensor], list[str]]:
        """The boundary tensors that the graph has, and the names of those it no longer has."""
        found: list[CutTensor] = []
        lost: list[str] = []
        own = {tensor.tensor for tensor in boundary}
        for tensor in boundary:
            # What is an argument itself cannot be put in another's place.
            other = tensor.stand_in if tensor.stand_in not in own and tensor.info is not None else None
            value = self.values.get(tensor.tensor or "") or self.values.get(other or "")
            if value is None:
                lost.append(tensor.name)
            else:
                is_stand_in = tensor.tensor not in self.values
                found.append(CutTensor(tensor.name, value, info=tensor.info, is_stand_in=is_stand_in))
        return found, lost

    def _check_work(
        self, call: CallRecord, own: set[ir.Node], inputs: list[CutTensor], outputs: list[CutTensor]
    ) -> None:
        given = {tensor.value for tensor in inputs}
        if own or any(tensor.value not in given for tensor in outputs):
            return
        how = "it returned what it was given"
        if not outputs:
            how = "nothing of it is in the graph, because no result of the model needs it or because it was folded away"
        raise ExtractionError(call.id, "no_operation", f"this call ran no operation: {how}")

    def _check_complete(
        self, call: CallRecord, own: set[ir.Node], inputs: list[CutTensor], lost: list[str], found: Slice
    ) -> None:
        """Refuse a slice that runs past the call's own arguments because the graph has them no longer."""
        foreign = [n for n in found.nodes if self.records[n].kind == "fused" and self._strangers(call, n)]
        if lost and (found.further or foreign):
            raise self._fused(call, found.nodes, f"the graph no longer has its input {lost[0]!r}", lost, found.further)
        if found.further:
            for tensor in inputs:
                if tensor.value not in found.reached and self._slicer.depends_on(tensor.value, found.further):
                    what = f"the graph computes its result without its input {tensor.name!r}"
                    raise self._fused(call, found.nodes, what, [tensor.name], found.further)

    def _strangers(self, call: CallRecord, node: ir.Node) -> set[str]:
        """The calls that a node works for besides this one, those around it aside."""
        around = set()
        current: CallRecord | None = call
        while current is not None and current.id not in around:
            around.add(current.id)
            current = self.calls.get(current.parent) if current.parent is not None else None
        strangers = self._served[node] - self.calls_inside(call.id)
        return strangers - around or strangers

    def _fused(
        self,
        call: CallRecord,
        nodes: Iterable[ir.Node],
        what: str,
        lost: list[str],
        further: Iterable[ir.Value] = (),
    ) -> ExtractionError:
        culprits: set[str] = set()
        nodes = list(nodes)
        for node in nodes:
            if self.records[node].kind == "fused":
                culprits |= self._strangers(call, node)
        if not culprits:
            # Nothing is recorded as fused: name who makes what the call now starts from, or who reads what it makes.
            makers = [producer for value in further if (producer := value.producer()) is not None]
            made = [value for node in nodes for value in node.outputs]
            made = [value for value in made if value in self._changing] or made
            for node in makers or [use.node for value in made for use in value.uses()]:
                culprits |= self._strangers(call, node)
        named = sorted(culprits, key=lambda c: (len(c), c))
        shown = ", ".join(_shown(c) for c in named[:_NAMED_CALLS]) + (", …" if len(named) > _NAMED_CALLS else "")
        return ExtractionError(call.id, "fused", f"{what}: it is fused with {shown or 'its neighbours'}", named)

    def _axis_sizes(self, inputs: list[CutTensor]) -> tuple[AxisSize, ...]:
        """Tensors that hold the size of a dynamic axis which an input has too."""
        axes: dict[str, tuple[ir.Value, int]] = {}
        for tensor in inputs:
            for place, size in enumerate(tensor.info.shape if tensor.info is not None else ()):
                if isinstance(size, str):
                    axes.setdefault(size, (tensor.value, place))
        found = []
        for record in self.document.tensors:
            value = self.values.get(record.id)
            if record.axis in axes and value is not None and _is_number(value):
                found.append(AxisSize(value, *axes[record.axis]))
        return tuple(found)

    def _cut_by_flow(self, call: CallRecord, own: set[ir.Node]) -> Cut:
        """The cut of a call whose boundary nobody recorded: what flows in and out of its nodes."""
        if not own:
            raise ExtractionError(call.id, "no_operation", "this call ran no operation: nothing of it is in the graph")
        held = {inner for node in own for _, body in graph_bodies(node) for inner in body.all_nodes()}
        top = [node for _, node in self.nodes if node in own and node not in held]
        foreign = [n for n in top if self.records[n].kind == "fused" and self._strangers(call, n)]
        if foreign:
            raise self._fused(call, foreign, "nobody recorded its boundary, and its nodes do others' work too", [])
        results = leaving(top, own.__contains__, self._served)
        if not results:
            raise ExtractionError(call.id, "unknown_boundary", "nobody recorded its boundary, and nothing leaves it")
        entering: dict[ir.Value, None] = {}
        for node in top:
            for value in self._slicer.reads(node):
                if value in self._changing and value.producer() not in own:
                    entering[value] = None
        found = self._slicer.cut(results, entering, own.__contains__)
        module = next(m for m in self.document.modules if m.path == call.path)
        arguments = [a.name for a in module.forward_arguments if a.required and not a.kind.startswith("var")]
        names = arguments if len(arguments) == len(entering) == 1 else [value.name or "" for value in entering]
        fields = ["output"] if len(results) == 1 else [value.name or "" for value in results]
        return Cut(
            call,
            tuple(CutTensor(name, value) for name, value in zip(names, entering, strict=True)),
            tuple(CutTensor(name, value) for name, value in zip(fields, results, strict=True)),
            found,
            notes=("nobody recorded the boundary of this call: it is cut where data flows in and out of its nodes",),
        )


def _is_number(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.INT64 and value.shape is not None and tuple(value.shape) in ((), (1,))


def _shown(call: str) -> str:
    return repr(call) if call else "the root"
