"""Values of the traced FX graph in the decomposed program: the boundary tensors of module calls."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from modelexport.capture.fx.trace_recorder import ForwardPass, TracedTensor, TraceRecorder
from modelexport.hierarchy import BoundaryTensor, CallTree, ModuleCall
from modelexport.torch_support.private import is_operator_overload, leaves_of, schema_of
from modelexport.torch_support.private_fx import serial_of


def with_boundaries(
    calls: CallTree,
    program: torch.export.ExportedProgram,
    recorder: TraceRecorder,
    tensors: Mapping[str, str | None],
) -> CallTree:
    """Return the calls with the boundary tensors that the hooks saw; `tensors` are those of the program's values."""
    last = recorder.last_pass
    if last is None:
        return calls
    values = _DecomposedValues(program, recorder, last)

    def boundary(traced: list[TracedTensor]) -> tuple[BoundaryTensor, ...]:
        names = [values.find(tensor.node, tensor.node_count) if tensor.node is not None else None for tensor in traced]
        found = [tensors.get(name) if name is not None else None for name in names]
        return tuple(BoundaryTensor(t.name, name, t.info) for t, name in zip(traced, found, strict=True))

    complete = {call.id: call for call in calls}
    for id_, traced in last.calls.items():
        inputs, outputs = boundary(traced.inputs), boundary(traced.outputs)
        complete[id_] = ModuleCall(id_.path, id_.index, traced.parent, inputs, outputs)
    return CallTree(complete)


class _DecomposedValues:
    """Finds values of the traced graph in the decomposed program."""

    def __init__(self, program: torch.export.ExportedProgram, recorder: TraceRecorder, last: ForwardPass) -> None:
        self._nodes: dict[int, list[torch.fx.Node]] = {}
        for node in program.graph.nodes:
            generated = recorder.generated.find(node)
            serial = generated.serial if generated is not None else serial_of(node)
            if serial is not None and node.op == "call_function":
                self._nodes.setdefault(serial, []).append(node)
        self._output = next(node for node in program.graph.nodes if node.op == "output")
        self._placeholders = _match_placeholders(last.nodes, program.graph_signature)

    def find(self, traced: torch.fx.Node, node_count: int) -> str | None:
        """Return the name in the program of the value of `traced` after the first `node_count` nodes, if it has one."""
        if _is_written(traced, node_count):
            # In the program, a node that writes into a tensor returns a new value. Later consumers lead to it.
            node = self._consumed_instead(traced, node_count)
            return node.name if node is not None else None
        if traced.op == "placeholder":
            return self._placeholders.get(traced)
        node = self._result_of(traced) or self._consumed_instead(traced)
        return node.name if node is not None and _same_type(traced, node) else None

    def _decomposed(self, traced: torch.fx.Node) -> list[torch.fx.Node]:
        serial = serial_of(traced)
        return self._nodes.get(serial, []) if serial is not None else []

    def _result_of(self, traced: torch.fx.Node) -> torch.fx.Node | None:
        if traced.target is operator.getitem:
            source, index = traced.args[0], traced.args[1]
            items = self._decomposed(source) if isinstance(source, torch.fx.Node) else []
            picked = [n for n in items if n.target is operator.getitem and n.args[1] == index]
            return picked[-1] if picked else None
        # A decomposition can have more results than the operator: take the last one of the same shape and type.
        return next((node for node in reversed(self._decomposed(traced)) if _same_type(traced, node)), None)

    def _consumed_instead(self, traced: torch.fx.Node, since: int = 0) -> torch.fx.Node | None:
        """Return the value that the program's nodes consume where the traced nodes consumed `traced`.

        This finds an operator that was decomposed to nothing because it returns its input, and a value that was
        written into.
        """
        for user in traced.users:
            if (serial_of(user) or since) < since:
                continue
            if user.op == "output":
                pairs = zip(leaves_of(user.args), leaves_of(self._output.args), strict=False)
                for one, other in pairs:
                    if one is traced and isinstance(other, torch.fx.Node):
                        return other
                continue
            decomposed = self._decomposed(user)
            if not decomposed and user.all_input_nodes == [traced] and _same_type(traced, user):
                # This user returned its input as well: follow its own users.
                found = self._consumed_instead(user, since)
                if found is not None:
                    return found
            for node in decomposed:
                if len(node.args) != len(user.args):
                    continue
                for one, other in zip(user.args, node.args, strict=True):
                    if one is traced and isinstance(other, torch.fx.Node) and _same_type(traced, other):
                        return other
        return None


def _is_written(traced: torch.fx.Node, node_count: int) -> bool:
    """Whether one of the first `node_count` nodes wrote into the tensor or a view of it, after it was computed."""
    computed = serial_of(traced)
    pending = [traced]
    while pending:
        view = pending.pop()
        for user in view.users:
            serial, target = serial_of(user), user.target
            if serial is None or serial >= node_count or not is_operator_overload(target):
                continue
            if computed is not None and serial > computed and any(_writes(user, target, view)):
                return True
            if target.is_view:
                pending.append(user)
    return False


def _writes(user: torch.fx.Node, target: Any, view: torch.fx.Node) -> Iterator[bool]:
    for value, argument in zip(user.args, schema_of(target).arguments, strict=False):
        yield value is view and argument.alias_info is not None and argument.alias_info.is_write


def _match_placeholders(
    traced: list[torch.fx.Node], signature: torch.export.ExportGraphSignature
) -> dict[torch.fx.Node, str]:
    """Match the placeholders of the traced graph with those of the program.

    Both have parameters and buffers first and the user's inputs last; the program has lifted constants in between.
    """
    placeholders = [node for node in traced if node.op == "placeholder"]
    users = list(signature.user_inputs)
    states = [*signature.inputs_to_parameters, *signature.inputs_to_buffers]
    split = len(placeholders) - len(users)
    if split < 0 or split > len(states):
        return {}
    names = [*states[:split], *users]
    return {node: str(name) for node, name in zip(placeholders, names, strict=True) if isinstance(name, str)}


def _same_type(one: torch.fx.Node, other: torch.fx.Node) -> bool:
    """Whether the values of two nodes are tensors of the same shape and element type."""
    first, second = one.meta.get("val"), other.meta.get("val")
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return False
    return first.dtype == second.dtype and [str(n) for n in first.shape] == [str(n) for n in second.shape]
