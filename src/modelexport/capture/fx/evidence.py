"""Who ran the nodes of a decomposed FX program, and which of its values crossed a module's boundary.

An FX node leads back to the call that made it by the first of these that applies:
1. It came out of code that the exporter generated (the block under a `no_grad`, a control-flow body): the last
   frame of its stack trace names the generated file and the variable assigned there, hence the original node.
2. The serial number that the recorder gave the traced node it was decomposed from.
3. The exporter's own `nn_module_stack`.
"""

from __future__ import annotations

import functools
import operator
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import onnx_ir as ir
import torch

from modelexport.capture.fx.trace_recorder import CodeNode, Pass, Recorder, TracedTensor, scope_index, serial_of
from modelexport.hierarchy import BoundaryTensor, CallId, CallTree, ModuleCall, ModuleTree
from modelexport.torch_support.private import is_operator_overload, schema_of

# A frame of generated code, as Python's traceback prints it: file, line, function, then the line itself.
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line \d+, in [^\n]*\n\s+(?P<variable>\w+)(?:\s*:[^=\n]*)?\s*=[^=]')

# Where torch writes the text of the FX node that an ONNX node was translated from.
_FX_TEXT = "pkg.torch.onnx.fx_node"


class FxEvidence:
    """What is known of the calls and nodes of one exported program."""

    def __init__(self, program: torch.export.ExportedProgram, recorder: Recorder, tree: ModuleTree) -> None:
        self._program = program
        self._recorder = recorder
        self._tree = tree
        self._pass = recorder.last if recorder.last is not None else Pass(tracer=None)
        self._calls: dict[CallId, ModuleCall] = {
            call.id: ModuleCall(call.id.path, call.id.index, call.parent) for call in self._pass.calls.values()
        }
        self._by_scope = {call.scope: call.id for call in self._pass.calls.values() if call.scope is not None}
        self._by_generated: dict[tuple[str, str], CallId] = {}
        self._began = {call.id: call.began for call in self._pass.calls.values()}
        self._counts = Counter(call.path for call in self._calls)
        self._enclosing = dict(enclosing_nodes(program.graph_module))
        self._values = _TracedValues(self)

    def call_of(self, node: torch.fx.Node) -> CallId | None:
        """The call that ran `node`, or None where nothing recorded it."""
        found = self._generated_node(node)
        if found is not None:
            file, code = found
            owner = self._pass.owner(code.serial) if code.serial is not None else None
            return owner or self._call_of_generated(file, code, node)
        if self._recorder.last is None and self._enclosing.get(node.graph) is not None:
            # Without hooks nothing tells which module ran what inside a body.
            return None
        return self._own_call(node)

    def calls(self, values: dict[str, str | None]) -> CallTree:
        """All calls met so far; `values` gives the tensor of the ONNX graph for each FX value."""

        def boundary(tensors: list[TracedTensor]) -> tuple[BoundaryTensor, ...]:
            return tuple(
                BoundaryTensor(tensor.name, self._tensor_name(tensor, values), tensor.info) for tensor in tensors
            )

        seen = self._pass.calls
        complete = dict(self._calls)
        for traced in self._pass.calls.values():
            complete[traced.id] = ModuleCall(
                traced.id.path,
                traced.id.index,
                traced.parent,
                inputs=boundary(traced.inputs),
                outputs=boundary(traced.outputs),
            )
        # Calls in bodies are met when the nodes there are; they began where the node that runs the body stands.
        order = sorted(complete, key=lambda call: (self._began.get(call, len(self._pass.nodes)), call not in seen))
        return CallTree({call: complete[call] for call in order})

    def _generated_node(self, node: torch.fx.Node) -> tuple[str, CodeNode] | None:
        line = generated_line(node)
        if line is None:
            return None
        file, variable = line
        code = self._recorder.generated.get(file, {}).get(variable)
        return (file, code) if code is not None else None

    def _call_of_generated(self, file: str, code: CodeNode, node: torch.fx.Node) -> CallId | None:
        """The innermost module of a body's stack; the call around the body where no module was running."""
        enclosing = self._enclosing.get(node.graph)
        call = self.call_of(enclosing) if enclosing is not None else self._own_call(node)
        for key, name in code.stack:
            known = self._by_generated.get((file, key))
            if known is None:
                path = self._path_of(key, name)
                if path is None:
                    continue
                known = self._new_call(path, parent=call)
                self._by_generated[file, key] = known
                if (began := self._place_of_body(node)) is not None:
                    self._began[known] = began
            call = known
        return call

    def _place_of_body(self, node: torch.fx.Node) -> int | None:
        """The serial number of the node of the main graph that runs the body `node` is in."""
        while (enclosing := self._enclosing.get(node.graph)) is not None:
            node = enclosing
        own = serial_of(node)
        return own if own is not None else self.serial(node)

    def _path_of(self, key: str, name: str) -> str | None:
        """The module of a stack entry: the compiler keys them by the module's identity, the tracer by name."""
        identity = key.partition("@")[0]
        if identity.isdigit():
            return self._recorder.paths_by_id.get(int(identity))
        return self._tree.canonical(name)

    def _own_call(self, node: torch.fx.Node) -> CallId | None:
        serial = serial_of(node)
        if serial is not None and (owner := self._pass.owner(serial)) is not None:
            return owner
        return self._call_of_stack(node)

    def _call_of_stack(self, node: torch.fx.Node) -> CallId | None:
        """The innermost entry of `nn_module_stack` that is a module of the tree.

        Entries can be placeholders that stand for no module; those are passed over.
        """
        call: CallId | None = None
        for key, (name, _) in (node.meta.get("nn_module_stack") or {}).items():
            path = self._tree.canonical(name)
            if path is None:
                continue
            scope = (name, scope_index(key, name))
            if scope not in self._by_scope:
                # No hook saw this call: it was traced in a way that runs none.
                self._by_scope[scope] = self._new_call(path, parent=call)
            call = self._by_scope[scope]
        return call

    def _new_call(self, path: str, parent: CallId | None) -> CallId:
        call = CallId(path, self._counts[path])
        self._counts[path] += 1
        self._calls[call] = ModuleCall(path, call.index, parent)
        return call

    def _tensor_name(self, tensor: TracedTensor, values: dict[str, str | None]) -> str | None:
        if tensor.node is None:
            return None
        name = self._values.find(tensor.node, tensor.seen)
        return values.get(name) if name is not None else None

    def serial(self, node: torch.fx.Node) -> int | None:
        """The serial number of the traced node that `node` came from, through generated code if need be."""
        found = self._generated_node(node)
        return found[1].serial if found is not None else serial_of(node)

    @property
    def program(self) -> torch.export.ExportedProgram:
        """The program this is the evidence for."""
        return self._program

    @property
    def traced_nodes(self) -> list[torch.fx.Node]:
        """The nodes of the traced graph by serial number."""
        return self._pass.nodes


def generated_line(node: torch.fx.Node) -> tuple[str, str] | None:
    """The file and the variable that is assigned in the last line of code that the node came by."""
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    return (frames[-1]["file"], frames[-1]["variable"]) if frames else None


def enclosing_nodes(module: torch.fx.GraphModule) -> Iterator[tuple[torch.fx.Graph, torch.fx.Node]]:
    """For the graph of each body: the node that runs it."""
    waiting = [module]
    while waiting:
        current = waiting.pop()
        for node in current.graph.nodes:
            for source in node.all_input_nodes if node.op == "call_function" else ():
                if source.op != "get_attr":
                    continue
                body = getattr(current, str(source.target), None)
                if isinstance(body, torch.fx.GraphModule):
                    yield body.graph, node
                    waiting.append(body)


class _TracedValues:
    """Where the values of the traced graph are in the decomposed one."""

    def __init__(self, evidence: FxEvidence) -> None:
        signature = evidence.program.graph_signature
        self._nodes: dict[int, list[torch.fx.Node]] = {}
        self._by_name: dict[str, torch.fx.Node] = {}
        for node in evidence.program.graph.nodes:
            self._by_name[node.name] = node
            serial = evidence.serial(node)
            if serial is not None and node.op == "call_function":
                self._nodes.setdefault(serial, []).append(node)
        self._output = next(node for node in evidence.program.graph.nodes if node.op == "output")
        self._placeholders = _match_placeholders(evidence.traced_nodes, signature)

    def find(self, traced: torch.fx.Node, seen: int) -> str | None:
        """The decomposed program's name for what `traced` held when there were `seen` nodes; None if it has it not."""
        if _is_written(traced, seen):
            # The program has no node for it by that name: what is read from it later tells.
            node = self._seen_by_users(traced, seen)
            return node.name if node is not None else None
        if traced.op == "placeholder":
            return self._placeholders.get(traced)
        node = self._result_of(traced) or self._seen_by_users(traced)
        return node.name if node is not None and _same_shape(traced, node) else None

    def _from(self, traced: torch.fx.Node) -> list[torch.fx.Node]:
        serial = serial_of(traced)
        return self._nodes.get(serial, []) if serial is not None else []

    def _result_of(self, traced: torch.fx.Node) -> torch.fx.Node | None:
        if traced.target is operator.getitem:
            source, index = traced.args[0], traced.args[1]
            items = self._from(source) if isinstance(source, torch.fx.Node) else []
            picked = [n for n in items if n.target is operator.getitem and n.args[1] == index]
            return picked[-1] if picked else None
        # The last of the nodes it was decomposed into that looks like it: one of several results, where the
        # decomposition has more than the operation had.
        return next((node for node in reversed(self._from(traced)) if _same_shape(traced, node)), None)

    def _seen_by_users(self, traced: torch.fx.Node, since: int = 0) -> torch.fx.Node | None:
        """What the program's nodes read where the traced ones read `traced`.

        So an operation that decomposed to nothing is found (it returned its input), and a value that was written into.
        """
        for user in traced.users:
            if (serial_of(user) or since) < since:
                continue
            if user.op == "output":
                pairs = zip(_flat(user.args), _flat(self._output.args), strict=False)
                for one, other in pairs:
                    if one is traced and isinstance(other, torch.fx.Node):
                        return other
                continue
            made = self._from(user)
            if not made and user.all_input_nodes == [traced] and _same_shape(traced, user):
                # It returned its input as well: its own readers tell.
                found = self._seen_by_users(user, since)
                if found is not None:
                    return found
            for node in made:
                if len(node.args) != len(user.args):
                    continue
                for one, other in zip(user.args, node.args, strict=True):
                    if one is traced and isinstance(other, torch.fx.Node) and _same_shape(traced, other):
                        return other
        return None


def _is_written(traced: torch.fx.Node, seen: int) -> bool:
    """Whether one of the first `seen` nodes wrote into the tensor through a view of it, after it was made."""
    made = serial_of(traced)
    waiting = [traced]
    while waiting:
        held = waiting.pop()
        for user in held.users:
            serial, target = serial_of(user), user.target
            if serial is None or serial >= seen or not is_operator_overload(target):
                continue
            if made is not None and serial > made and any(_writes(user, target, held)):
                return True
            if target.is_view:
                waiting.append(user)
    return False


def _writes(user: torch.fx.Node, target: Any, held: torch.fx.Node) -> Iterator[bool]:
    for given, argument in zip(user.args, schema_of(target).arguments, strict=False):
        yield given is held and argument.alias_info is not None and argument.alias_info.is_write


def _match_placeholders(
    traced: list[torch.fx.Node], signature: torch.export.ExportGraphSignature
) -> dict[torch.fx.Node, str]:
    """Traced placeholders are parameters and buffers, then the user's inputs; so are the program's, with lifted
    constants in between."""
    placeholders = [node for node in traced if node.op == "placeholder"]
    users = list(signature.user_inputs)
    states = [*signature.inputs_to_parameters, *signature.inputs_to_buffers]
    split = len(placeholders) - len(users)
    if split < 0 or split > len(states):
        return {}
    names = [*states[:split], *users]
    return {node: str(name) for node, name in zip(placeholders, names, strict=True) if isinstance(name, str)}


def _flat(args: object) -> list[object]:
    if isinstance(args, list | tuple):
        return [leaf for arg in args for leaf in _flat(arg)]
    return [args]


def _same_shape(one: torch.fx.Node, other: torch.fx.Node) -> bool:
    first, second = one.meta.get("val"), other.meta.get("val")
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return False
    return first.dtype == second.dtype and [str(n) for n in first.shape] == [str(n) for n in second.shape]


class FxSources:
    """From a node of the ONNX graph to the FX node it was translated from."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self._program = program

    def of(self, node: ir.Node) -> torch.fx.Node | None:
        """The FX node that torch keeps on the node itself, or the one whose text is in its metadata.

        Nodes that come out of an inlined function have only the metadata of the node that called it.
        """
        source = node.meta.get("node")
        if isinstance(source, torch.fx.Node):
            return source
        text = node.metadata_props.get(_FX_TEXT)
        return self._by_text.get(text) if text is not None else None

    @functools.cached_property
    def _by_text(self) -> dict[str | None, torch.fx.Node | None]:
        """FX nodes by their text; None for a text that nodes of several bodies share."""
        found: dict[str | None, torch.fx.Node | None] = {}
        for module in self._program.graph_module.modules():
            for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
                text = node.format_node()
                found[text] = None if text in found else node
        return found


def onnx_values(program: torch.export.ExportedProgram, model: ir.Model) -> dict[str, str | None]:
    """For each value of the program, the tensor of the ONNX graph that holds it.

    Tensors take the names of FX values. A translation that returns its input unchanged gives the input's
    tensor the later name, so a name that is missing is looked for among the readers that made no node.
    """
    names = set(model.graph.initializers)
    names.update(value.name for value in model.graph.inputs if value.name)
    emitted: set[object] = set()
    for node in model.graph:
        emitted.add(node.meta.get("node"))
        names.update(value.name for value in node.outputs if value.name)
    signature = program.graph_signature
    states = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    renamed = _renamed_ends(program, model)
    found: dict[str, str | None] = {}
    for node in reversed(program.graph.nodes):
        name = states.get(node.name, node.name)
        if name in names:
            found[node.name] = name
        elif node.name in renamed:
            found[node.name] = renamed[node.name]
        else:
            passed_on = (found.get(user.name) for user in node.users if user not in emitted)
            found[node.name] = next((tensor for tensor in passed_on if tensor is not None), None)
    return found


def _renamed_ends(program: torch.export.ExportedProgram, model: ir.Model) -> dict[str, str]:
    """Values of the program that are inputs or results of the model, under the names that the model gives them.

    Callers choose these names, and the exporter gives them last; the order stays.
    """
    users = set(program.graph_signature.user_inputs)
    inputs = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in users]
    output = next(node for node in program.graph.nodes if node.op == "output")
    found: dict[str, str] = {}
    for nodes, values in ((inputs, model.graph.inputs), (_flat(output.args), model.graph.outputs)):
        if len(nodes) == len(values):
            pairs = zip(nodes, values, strict=True)
            found.update({n.name: v.name for n, v in pairs if isinstance(n, torch.fx.Node) and v.name})
    return found


def axis_sizes(model: ir.Model, sources: FxSources) -> dict[str, str]:
    """The tensors of the main graph that hold the size of a dynamic axis, each with the axis' name.

    An FX node that makes a size out of tensors alone takes it from one of them; all numbers that its translation makes
    on the way are that size.
    """
    found: dict[str, str] = {}
    for node in model.graph:
        source = sources.of(node) if node.inputs else None
        size = source.meta.get("val") if source is not None else None
        if source is None or not isinstance(size, torch.SymInt) or not size.node.expr.is_symbol:
            continue
        if not all(isinstance(read.meta.get("val"), torch.Tensor) for read in source.all_input_nodes):
            continue
        found.update({value.name: str(size) for value in node.outputs if value.name and _may_be_number(value)})
    return found


def _may_be_number(value: ir.Value) -> bool:
    return value.dtype in (None, ir.DataType.INT64) and (value.shape is None or tuple(value.shape) in ((), (1,)))
