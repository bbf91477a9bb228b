"""One tracing pass, watched: the module calls in order, their boundaries, and which call made each FX node.

The exporter's own record (`nn_module_stack`) knows neither a call's arguments and results nor, where a block
runs under `no_grad` or `autocast` or inside a control-flow body, the module at all. Forward hooks run while
the exporter traces, so they see every call. Each FX node that appears between two hook events belongs to the
call that was running, and gets a serial number in its metadata that survives decomposition.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import torch
from torch.fx.experimental import proxy_tensor

from modelexport.hierarchy import CallId, ModuleTree, TensorInfo
from modelexport.structure import named_arguments, named_results

# torch copies `meta["custom"]` from a node to the nodes it is decomposed into, and writes none of it to ONNX.
_CUSTOM = "custom"
_SERIAL = "modelexport.serial"

Tracer = proxy_tensor.PythonKeyTracer | proxy_tensor._GraphAppendingTracerEx


def serial_of(node: torch.fx.Node) -> int | None:
    """The serial number of the traced node that `node` is or comes from."""
    custom = node.meta.get(_CUSTOM)
    serial = custom.get(_SERIAL) if isinstance(custom, dict) else None
    return serial if isinstance(serial, int) else None


def mark_serial(node: torch.fx.Node, serial: int) -> None:
    """Give a node its serial number."""
    node.meta[_CUSTOM] = {**node.meta.get(_CUSTOM, {}), _SERIAL: serial}


@contextlib.contextmanager
def marks_removed(nodes: Iterable[torch.fx.Node]) -> Iterator[None]:
    """What is marked on the nodes within the context is gone at its end."""
    kept = [(node, node.meta.get(_CUSTOM)) for node in nodes]
    try:
        yield
    finally:
        for node, custom in kept:
            if custom is None:
                node.meta.pop(_CUSTOM, None)
            else:
                node.meta[_CUSTOM] = custom


@dataclasses.dataclass(frozen=True)
class TracedTensor:
    """A tensor that entered or left a call: its name there, the FX node that holds it, what it looks like.

    `seen` is how many FX nodes there were at that moment: later ones may write into the tensor.
    """

    name: str
    node: torch.fx.Node | None
    sizes: tuple[object, ...]
    dtype: torch.dtype
    seen: int = 0

    @property
    def info(self) -> TensorInfo:
        """Shape and type. Asked for at the end of the trace: until then two axes may turn out to be one."""
        shape = tuple(size if isinstance(size, int) else str(size) for size in self.sizes)
        return TensorInfo(shape=shape, dtype=str(self.dtype).removeprefix("torch."))


@dataclasses.dataclass
class TracedCall:
    """A call as the hooks saw it.

    `scope` is how the exporter's own record names it; `began` is how many FX nodes there were when it began.
    """

    id: CallId
    parent: CallId | None
    scope: tuple[str, int] | None
    inputs: list[TracedTensor]
    began: int = 0
    outputs: list[TracedTensor] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Pass:
    """What one forward pass of the root left behind."""

    tracer: Tracer | None
    root_scope: str | None = None
    calls: dict[CallId, TracedCall] = dataclasses.field(default_factory=dict)
    owners: list[CallId | None] = dataclasses.field(default_factory=list)
    nodes: list[torch.fx.Node] = dataclasses.field(default_factory=list)
    complete: bool = False

    def owner(self, serial: int) -> CallId | None:
        """The call that was running when the node with this serial number was made."""
        return self.owners[serial] if serial < len(self.owners) else None


@dataclasses.dataclass(frozen=True)
class CodeNode:
    """A node of a generated graph module: its serial number, and the modules running, outermost first."""

    serial: int | None
    stack: tuple[tuple[str, str], ...]


class Recorder:
    """Watches the passes of one model while `watching`; holds the last complete one afterwards."""

    def __init__(self, model: torch.nn.Module, tree: ModuleTree) -> None:
        self._model = model
        self._tree = tree
        self._modules = {info.path: model.get_submodule(info.path) for info in tree}
        self.paths_by_id = {id(module): path for path, module in self._modules.items()}
        self._current: Pass | None = None
        self._stack: list[CallId] = []
        self._counts: Counter[str] = Counter()
        self.last: Pass | None = None
        # Code of generated graph modules by file name, then by the variable each line assigns: the record of
        # what ran inside blocks and bodies that the exporter turned into graph modules of their own.
        self.generated: dict[str, dict[str, CodeNode]] = {}
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        # Modules that a forward put in the place of others, held so that none gets the identity of another.
        self._replacing: list[torch.nn.Module] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Hooks on every module for the time of the context; all of them removed at its end."""
        try:
            for path, module in self._modules.items():
                if not isinstance(module, torch.jit.ScriptModule):
                    self._hook(module, path)
            for see in (self._see_generated, self._see_replaced):
                self._handles.append(torch.nn.modules.module.register_module_forward_pre_hook(see))
            yield
        finally:
            for handle in self._handles:
                handle.remove()
            self._handles.clear()

    def _hook(self, module: torch.nn.Module, path: str) -> None:
        before, after = self._hooks(path)
        # Before the user's own hooks and after them: a call is all that `module(...)` does.
        self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
        self._handles.append(module.register_forward_hook(after))

    def _hooks(self, path: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def before(module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            # While torch compiles a control-flow body it traces the hooks too: they must have no effect there.
            if not torch.compiler.is_dynamo_compiling():
                self._enter(path, args, kwargs)

        def after(module: torch.nn.Module, args: tuple[object, ...], result: object) -> None:
            if not torch.compiler.is_dynamo_compiling():
                self._leave(path, result)

        return before, after

    def _enter(self, path: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        mode = proxy_tensor.get_proxy_mode()
        tracer = mode.tracer if mode is not None else None
        if path == "" and not self._stack:
            self._current = Pass(tracer, root_scope=_innermost_scope(tracer)[1])
            self._counts.clear()
        current = self._current
        if current is None:
            return
        self._claim_new_nodes(current)
        scope = _scope(current) if tracer is current.tracer else None
        call = CallId(path, self._counts[path])
        self._counts[path] += 1
        inputs = named_arguments(self._tree[path].forward_arguments, args, kwargs)
        current.calls[call] = TracedCall(
            id=call,
            parent=self._stack[-1] if self._stack else None,
            scope=scope,
            inputs=[_traced(name, tensor, current) for name, tensor in inputs],
            began=len(current.nodes),
        )
        self._stack.append(call)

    def _leave(self, path: str, result: object) -> None:
        current = self._current
        if current is None or not any(call.path == path for call in self._stack):
            return
        self._claim_new_nodes(current)
        # A call that ended in an exception which its caller caught never came here: it goes with this one.
        while True:
            call = self._stack.pop()
            if call.path == path:
                break
        outputs = named_results(result)
        current.calls[call].outputs = [_traced(name, tensor, current) for name, tensor in outputs]
        if not self._stack:
            current.complete = True
            self.last = current
            self._current = None

    def abandon(self) -> None:
        """Forget a pass that ended in an exception, so that the next one starts afresh."""
        self._stack.clear()
        self._current = None

    def _claim_new_nodes(self, current: Pass) -> None:
        """Number the FX nodes made since the last event; they belong to the call on top of the stack."""
        if current.tracer is None:
            return
        owner = self._stack[-1] if self._stack else None
        fresh: list[torch.fx.Node] = []
        for node in reversed(current.tracer.graph.nodes):
            if serial_of(node) is not None:
                break
            fresh.append(node)
        for node in reversed(fresh):
            mark_serial(node, len(current.nodes))
            current.nodes.append(node)
            current.owners.append(owner)

    def _see_replaced(self, module: torch.nn.Module, args: tuple[object, ...]) -> None:
        """A module that took the place of another while the model ran is called by the path of that place."""
        if torch.compiler.is_dynamo_compiling() or self._current is None or id(module) in self.paths_by_id:
            return
        if isinstance(module, torch.fx.GraphModule | torch.jit.ScriptModule):
            return
        path = next((path for path, other in self._model.named_modules() if other is module), None)
        if path is None or path not in self._modules:
            return
        self._replacing.append(module)
        self.paths_by_id[id(module)] = path
        # Hooks before a call are gathered already for this one; that behind it is not.
        self._hook(module, path)
        self._enter(path, args, {})

    def _see_generated(self, module: torch.nn.Module, args: object) -> None:
        if torch.compiler.is_dynamo_compiling() or not isinstance(module, torch.fx.GraphModule):
            return
        if id(module) in self.paths_by_id:
            return
        code = getattr(type(module).forward, "__code__", None)
        if code is None or code.co_filename in self.generated:
            return
        self.generated[code.co_filename] = {
            node.name: CodeNode(serial_of(node), _stack_of(node)) for node in module.graph.nodes
        }


def _innermost_scope(tracer: Tracer | None) -> tuple[str, str | None]:
    """The key and name under which the exporter records what runs now."""
    stack = getattr(tracer, "module_stack", None)
    if not stack:
        return "", None
    key, (name, _) = next(reversed(stack.items()))
    return key, name


def _scope(current: Pass) -> tuple[str, int] | None:
    """How the exporter's record names the call that is starting: the name it came by, and its count."""
    key, name = _innermost_scope(current.tracer)
    if name is None or current.root_scope is None:
        return None
    return name.removeprefix(current.root_scope).removeprefix("."), scope_index(key, name)


def scope_index(key: str, name: str) -> int:
    """The count in a key of `nn_module_stack`: `key` is `name` behind a prefix, then ``@count`` from 1 on."""
    if key.endswith(name):
        return 0
    _, _, count = key.rpartition("@")
    return int(count) if count.isdigit() else 0


def _stack_of(node: torch.fx.Node) -> tuple[tuple[str, str], ...]:
    stack: dict[str, tuple[str, object]] = node.meta.get("nn_module_stack") or {}
    return tuple((str(key), str(name)) for key, (name, _) in stack.items())


def _traced(name: str, tensor: torch.Tensor, current: Pass) -> TracedTensor:
    node, tracer = None, current.tracer
    if tracer is not None:
        slot = proxy_tensor.get_proxy_slot(tensor, tracer, None)
        proxy = getattr(slot, "proxy", slot)
        node = getattr(proxy, "node", None)
    return TracedTensor(name, node, tuple(tensor.shape), tensor.dtype, len(current.nodes))
