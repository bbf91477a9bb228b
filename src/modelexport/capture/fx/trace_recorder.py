"""Watch the forward passes that torch traces: the module calls, their tensors, and the call that ran each FX node.

torch's own record (`nn_module_stack`) has neither the arguments nor the results of a call. For a block under `no_grad`
or `autocast`, and for the body of a control-flow operator, it does not have the module either. Forward hooks run while
torch traces, so that they see every call. The FX nodes that appear between two hooks belong to the call that was
running. Each gets a serial number in its metadata, which survives decomposition.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from modelexport.capture import StackEntry, call_index, read_module_stack
from modelexport.errors import UnsupportedLibraryError
from modelexport.hierarchy import ROOT_PATH, CallId, ModuleTree, TensorInfo
from modelexport.torch_support import CallWatch, RunningCall, in_this_thread, named_arguments, named_results
from modelexport.torch_support.private_export import export_through
from modelexport.torch_support.private_fx import (
    Tracer,
    active_tracer,
    generated_line,
    innermost_scope,
    node_of,
    serial_of,
    set_serial,
)


class GeneratedNode(NamedTuple):
    """A node of a graph module whose generated code torch ran, with the module calls that torch recorded for it.

    torch turns a block under `no_grad` or `autocast`, or the body of a control-flow operator, into a graph module of
    its own, and traces the generated code of that module again. The stack trace of a node from the second trace ends in
    the generated code: its last line names the file and the assigned variable, which is the name of the node of the
    first trace.
    """

    file: str
    serial: int | None
    stack: tuple[StackEntry, ...]


class GeneratedCode:
    """The nodes of the graph modules that torch ran, by generated file and assigned variable."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, GeneratedNode]] = {}

    def record(self, module: torch.fx.GraphModule) -> None:
        """Record the nodes of a graph module; its code is generated once, so that its first call is enough."""
        code = getattr(type(module).forward, "__code__", None)
        if code is None or code.co_filename in self._nodes:
            return
        file = code.co_filename
        self._nodes[file] = {
            node.name: GeneratedNode(file, serial_of(node), tuple(read_module_stack(node)))
            for node in module.graph.nodes
        }

    def find(self, node: torch.fx.Node) -> GeneratedNode | None:
        """Return the node whose generated code was traced to `node`; None for a node from other code."""
        line = generated_line(node)
        return self._nodes.get(line[0], {}).get(line[1]) if line is not None else None


@dataclasses.dataclass(frozen=True)
class TracedTensor:
    """An input or output tensor of a call.

    Attributes:
        name: The name of the argument or result.
        node: The FX node of the tensor.
        sizes: Its shape, with symbolic sizes.
        dtype: Its type.
        node_count: The number of FX nodes at that moment. Later nodes may write into the tensor.
    """

    name: str
    node: torch.fx.Node | None
    sizes: tuple[object, ...]
    dtype: torch.dtype
    node_count: int = 0

    @property
    def info(self) -> TensorInfo:
        """Shape and type. Read it after the trace: until then torch may find that two symbolic sizes are equal."""
        shape = tuple(size if isinstance(size, int) else str(size) for size in self.sizes)
        return TensorInfo(shape=shape, dtype=str(self.dtype).removeprefix("torch."))


@dataclasses.dataclass
class TracedCall:
    """A module call that the hooks saw.

    Attributes:
        id: The call.
        parent: The call that made it.
        scope: The module's name and the call's index in torch's own record.
        inputs: Its input tensors.
        first_node: The number of FX nodes when it began.
        outputs: Its output tensors.
    """

    id: CallId
    parent: CallId | None
    scope: tuple[str, int] | None
    inputs: list[TracedTensor]
    first_node: int = 0
    outputs: list[TracedTensor] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class ForwardPass:
    """The calls and FX nodes of one forward pass of the root module.

    Attributes:
        tracer: The tracer that recorded it.
        root_scope: The root's name in torch's own record.
        calls: The calls, in the order in which they began.
        nodes: The FX nodes by serial number.
        owners: The call of each node, by serial number.
    """

    tracer: Tracer | None
    root_scope: str | None = None
    calls: dict[CallId, TracedCall] = dataclasses.field(default_factory=dict)
    owners: list[CallId | None] = dataclasses.field(default_factory=list)
    nodes: list[torch.fx.Node] = dataclasses.field(default_factory=list)

    def owner(self, serial: int) -> CallId | None:
        """Return the call that was running when the node with this serial number was traced."""
        return self.owners[serial] if serial < len(self.owners) else None


class TraceRecorder:
    """Watches the forward passes of one model.

    Attributes:
        last_pass: The last complete forward pass; None where there was none.
        generated: The generated code that torch ran.
        paths_by_id: The path of each module by its `id()`.
        failure: The first error of a hook. torch would take it for an error of the model, so that hooks raise none;
            what they recorded is then incomplete.
        completed: Whether there was a complete forward pass, also one that torch did not use.
        strict: Whether torch captured the model in its strict mode, which runs no hooks.
        program: What torch captured; decomposing it removes the conditions on sizes under which it is valid.
    """

    def __init__(self, model: torch.nn.Module, tree: ModuleTree) -> None:
        self._model = model
        self._tree = tree
        self._modules = dict(model.named_modules())
        self.paths_by_id = {id(module): path for path, module in self._modules.items()}
        self._current: ForwardPass | None = None
        self._calls: CallWatch[TracedCall | None] = CallWatch(self._enter, self._leave)
        self.last_pass: ForwardPass | None = None
        self.failure: Exception | None = None
        self.generated = GeneratedCode()
        self.completed = self.strict = False
        self.program: torch.export.ExportedProgram | None = None
        self._global_hooks: list[torch.utils.hooks.RemovableHandle] = []
        # Modules that forward assigned in place of others. They are referenced here so that no `id()` is used twice.
        self._replacements: list[torch.nn.Module] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the passes within the context, with hooks on every module; the hooks are removed at its end."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._calls.watching(self._modules))
            stack.enter_context(export_through(self._export))
            stack.callback(self._remove_global_hooks)
            for hook in (self._record_generated, self._watch_replacement):
                self._global_hooks.append(
                    torch.nn.modules.module.register_module_forward_pre_hook(in_this_thread(hook))
                )
            yield

    def _export(self, original: Callable[..., Any], *args: Any, strict: bool = False, **kwargs: Any) -> Any:
        """Run `torch.export.export`: its strict mode runs no hooks, and fails where a global one is registered."""
        if strict:
            self._remove_global_hooks()
            # The pass before it failed, and is not evidence for this one.
            self._current = self.last_pass = None
            self.generated = GeneratedCode()
            self.strict = True
        self.program = original(*args, strict=strict, **kwargs)
        return self.program

    def _remove_global_hooks(self) -> None:
        for handle in self._global_hooks:
            handle.remove()
        self._global_hooks.clear()

    def _enter(
        self, call: RunningCall[TracedCall | None], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> TracedCall | None:
        try:
            return self._begin(call, args, kwargs)
        except Exception as error:  # noqa: BLE001  see `failure`
            self.failure = self.failure or error
            return None

    def _begin(
        self, call: RunningCall[TracedCall | None], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> TracedCall | None:
        tracer, path = active_tracer(), call.id.path
        if call.parent is None:
            # A call of a submodule from outside the model belongs to no forward pass of the root.
            self._current = ForwardPass(tracer, root_scope=innermost_scope(tracer)[1]) if path == ROOT_PATH else None
        current = self._current
        if current is None:
            return None
        parent = call.parent.id if call.parent is not None else None
        _number_new_nodes(current, parent)
        scope = _innermost_call(current) if tracer is current.tracer else None
        inputs = named_arguments(self._tree[path].forward_arguments, args, kwargs)
        traced = TracedCall(
            id=call.id,
            parent=parent,
            scope=scope,
            inputs=[_traced_tensor(name, tensor, current) for name, tensor in inputs],
            first_node=len(current.nodes),
        )
        current.calls[call.id] = traced
        return traced

    def _leave(self, call: RunningCall[TracedCall | None], args: Any, kwargs: Any, result: Any) -> None:
        current, traced = self._current, call.record
        if current is None or traced is None:
            return
        try:
            _number_new_nodes(current, call.id)
            traced.outputs = [_traced_tensor(name, tensor, current) for name, tensor in named_results(result)]
        except Exception as error:  # noqa: BLE001  see `failure`
            self.failure = self.failure or error
        if call.parent is None:
            self.last_pass = current
            self.completed = True
            self._current = None

    def _watch_replacement(self, module: torch.nn.Module, args: tuple[object, ...]) -> None:
        """Watch a module that forward assigned in place of another; it has the path of the one it replaces."""
        if self._current is None or id(module) in self.paths_by_id:
            return
        if isinstance(module, torch.fx.GraphModule | torch.jit.ScriptModule):
            return
        path = next((path for path, other in self._model.named_modules() if other is module), None)
        if path is None or path not in self._modules:
            return
        self._replacements.append(module)
        self.paths_by_id[id(module)] = path
        # For this call torch has already collected the pre-hooks, but not the hooks after forward.
        self._calls.add(path, module)
        self._calls.enter(path, module, args, {}, sys._getframe(2))

    def _record_generated(self, module: torch.nn.Module, args: object) -> None:
        if isinstance(module, torch.fx.GraphModule) and id(module) not in self.paths_by_id:
            try:
                self.generated.record(module)
            except UnsupportedLibraryError as error:
                self.failure = self.failure or error


def _number_new_nodes(current: ForwardPass, owner: CallId | None) -> None:
    """Number the FX nodes that are new since the last hook; they belong to the call that was running."""
    if current.tracer is None:
        return
    new: list[torch.fx.Node] = []
    for node in reversed(current.tracer.graph.nodes):
        if serial_of(node) is not None:
            break
        new.append(node)
    for node in reversed(new):
        set_serial(node, len(current.nodes))
        current.nodes.append(node)
        current.owners.append(owner)


def _innermost_call(current: ForwardPass) -> tuple[str, int] | None:
    """Return the module's name and the call's index that torch records for the call that begins."""
    key, name = innermost_scope(current.tracer)
    if name is None or current.root_scope is None:
        return None
    return name.removeprefix(current.root_scope).removeprefix("."), call_index(key, name)


def _traced_tensor(name: str, tensor: torch.Tensor, current: ForwardPass) -> TracedTensor:
    node = node_of(tensor, current.tracer) if current.tracer is not None else None
    return TracedTensor(name, node, tuple(tensor.shape), tensor.dtype, len(current.nodes))
