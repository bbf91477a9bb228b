"""One tracing pass, watched: the module calls in order, their boundaries, and which call made each FX node.

The exporter's own record (`nn_module_stack`) knows neither a call's arguments and results nor, where a block
runs under `no_grad` or `autocast` or inside a control-flow body, the module at all. Forward hooks run while
the exporter traces, so they see every call. Each FX node that appears between two hook events belongs to the
call that was running, and gets a serial number in its metadata that survives decomposition.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from modelexport.hierarchy import ROOT_PATH, CallId, ModuleTree, TensorInfo
from modelexport.torch_support import CallWatch, RunningCall, named_arguments, named_results
from modelexport.torch_support.private_fx import (
    Tracer,
    active_tracer,
    innermost_scope,
    node_of,
    require_tracing_parts,
)

# torch copies `meta["custom"]` from a node to the nodes it is decomposed into, and writes none of it to ONNX.
_CUSTOM = "custom"
_SERIAL = "modelexport.serial"


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
        self._calls: CallWatch[TracedCall | None] = CallWatch(self._enter, self._leave)
        self.last: Pass | None = None
        # Code of generated graph modules by file name, then by the variable each line assigns: the record of
        # what ran inside blocks and bodies that the exporter turned into graph modules of their own.
        self.generated: dict[str, dict[str, CodeNode]] = {}
        # Modules that a forward put in the place of others, held so that none gets the identity of another.
        self._replacing: list[torch.nn.Module] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Hooks on every module for the time of the context; all of them removed at its end."""
        require_tracing_parts()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._calls.watching(self._modules))
            for see in (self._see_generated, self._see_replaced):
                stack.callback(torch.nn.modules.module.register_module_forward_pre_hook(see).remove)
            yield

    def _enter(
        self, call: RunningCall[TracedCall | None], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> TracedCall | None:
        tracer, path = active_tracer(), call.id.path
        if call.parent is None:
            # A call of a part of the model outside of all others belongs to no pass.
            self._current = Pass(tracer, root_scope=innermost_scope(tracer)[1]) if path == ROOT_PATH else None
        current = self._current
        if current is None:
            return None
        parent = call.parent.id if call.parent is not None else None
        self._claim_new_nodes(current, parent)
        scope = _scope(current) if tracer is current.tracer else None
        inputs = named_arguments(self._tree[path].forward_arguments, args, kwargs)
        traced = TracedCall(
            id=call.id,
            parent=parent,
            scope=scope,
            inputs=[_traced(name, tensor, current) for name, tensor in inputs],
            began=len(current.nodes),
        )
        current.calls[call.id] = traced
        return traced

    def _leave(self, call: RunningCall[TracedCall | None], args: Any, kwargs: Any, result: Any) -> None:
        current, traced = self._current, call.record
        if current is None or traced is None:
            return
        self._claim_new_nodes(current, call.id)
        traced.outputs = [_traced(name, tensor, current) for name, tensor in named_results(result)]
        if call.parent is None:
            self.last = current
            self._current = None

    def _claim_new_nodes(self, current: Pass, owner: CallId | None) -> None:
        """Number the FX nodes made since the last event; they belong to the call that was running."""
        if current.tracer is None:
            return
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
        # torch has gathered the hooks before this call already, but not those behind it.
        self._calls.add(path, module)
        self._calls.enter(path, module, args, {}, sys._getframe(1))

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


def _scope(current: Pass) -> tuple[str, int] | None:
    """How the exporter's record names the call that is starting: the name it came by, and its count."""
    key, name = innermost_scope(current.tracer)
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
    node = node_of(tensor, current.tracer) if current.tracer is not None else None
    return TracedTensor(name, node, tuple(tensor.shape), tensor.dtype, len(current.nodes))
