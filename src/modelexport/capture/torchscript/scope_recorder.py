"""One TorchScript trace, watched: the module calls in order, what each was given and returned, and what each ran.

The tracer labels the nodes it records with the modules that are running, as ``class::name`` for each level. The
exporter makes node names from the ``name`` half alone. So the ``class`` half can carry the call instead, exact and with
its index, and the file stays as it is.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from modelexport.capture import TracedSide
from modelexport.capture.torchscript.hook_scopes import HookScopes
from modelexport.capture.torchscript.jit_graph import JitNode
from modelexport.capture.torchscript.jit_values import ValueTracker, traced_values
from modelexport.hierarchy import BoundaryTensor, CallId, CallTree, ModuleCall, ModuleTree, TensorInfo
from modelexport.torch_support import named_arguments, named_results, own_calls_through
from modelexport.torch_support.private import base_of, has_forward_hooks, version_of
from modelexport.torch_support.private_jit import (
    Untraced,
    module_calls_through,
    module_labels,
    set_tracing_state,
    tracing_state,
)

_LABEL = re.compile(r"(?:^|/)modelexport-call-(\d+)::")


class ScopeRecorder:
    """Watches one trace: numbers the calls, and has the tracer label what they run with their numbers."""

    def __init__(
        self, model: torch.nn.Module, tree: ModuleTree, tracker: ValueTracker | None, inputs: list[torch.Tensor]
    ) -> None:
        modules = {info.path: model.get_submodule(info.path) for info in tree}
        watched = {path: m for path, m in modules.items() if not isinstance(m, torch.jit.ScriptModule)}
        self._watched = list(watched.values())
        self._paths = {id(module): path for path, module in watched.items()}
        # The module that is called by its class's own `__call__`, until torch runs the same call.
        self._passed_on: torch.nn.Module | None = None
        self._tree = tree
        self._tracker = tracker
        self._numbers: dict[CallId, tuple[list[int | None], list[int | None]]] = {}
        # Calls that were given or returned a tensor that something had written into: by way of a view that may have
        # been, and then the tracer's value for it is that of before.
        self.overwritten: set[CallId] = set()
        # Weights and copies of inputs have been written into before anything runs.
        stored = (*model.parameters(), *model.buffers(), *inputs)
        self._versions = {id(tensor): version for tensor in stored if (version := version_of(tensor))}
        # The calls that are running, and where in the trace what the hooks of each one record began.
        self._stack: list[int] = []
        self._begins: list[Any] = []
        self._counts: Counter[str] = Counter()
        self.calls: list[ModuleCall] = []
        self.hooks = HookScopes()
        self._by_scope: dict[str, CallId | None] = {}
        self.sides: dict[CallId, TracedSide] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """See the calls of the model's modules that are traced within the context.

        A call is all that ``module(...)`` does: the user's own hooks belong to it. Other threads trace nothing here.
        """
        with module_calls_through(self._call, self._forward), own_calls_through(self._watched, self._own_call):
            yield

    def _own_call(self, original: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        """A call by a class's own `__call__`: all of it is to the tracer what hooks are, part of the caller."""
        if self._passed_on is module:
            return original(module, *args, **kwargs)
        around, self._passed_on = self._passed_on, module
        try:
            return self._run(original, module, args, kwargs, own=True)
        finally:
            self._passed_on = around

    def _call(self, original: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self._passed_on is module:
            # The same call, which an own `__call__` has passed on.
            self._passed_on = None
            return original(module, *args, **kwargs)
        return self._run(original, module, args, kwargs, own=False)

    def _run(
        self,
        original: Callable[..., Any],
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        own: bool,
    ) -> Any:
        path = self._paths.get(id(module))
        state = tracing_state() if path is not None else None
        if path is None or state is None:
            return original(module, *args, **kwargs)
        depth = len(self._stack)
        with Untraced(state):
            self._enter(path, args, kwargs, state)
            self._begins.append(self.hooks.begin(state) if own or has_forward_hooks(module) else None)
        try:
            result = original(module, *args, **kwargs)
            with Untraced(state):
                self._label_hooks(state)
                self._leave(result, state)
            return result
        finally:
            # A call that ended in an exception may have a caller who catches it.
            del self._stack[depth:], self._begins[depth:]

    def _forward(self, original: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        """What stands before and behind this in a call are its hooks."""
        state = tracing_state()
        if state is None or id(module) not in self._paths or not self._stack:
            return original(module, *args, **kwargs)
        labels = module_labels()
        label = labels.get(module)
        if label:
            # Looked up next. Only what stands behind the colons goes into names.
            labels[module] = f"{_label(self._stack[-1])}::{label.partition('::')[2]}"
        if self._begins[-1] is None:
            return original(module, *args, **kwargs)
        with Untraced(state):
            self._label_hooks(state)
        result = original(module, *args, **kwargs)
        with Untraced(state):
            self._begins[-1] = self.hooks.begin(state)
        return result

    def _label_hooks(self, state: object) -> None:
        if self._begins[-1] is not None:
            self.hooks.label(state, self._begins[-1], _label(self._stack[-1]))

    def _enter(self, path: str, given: tuple[object, ...], named: dict[str, object], state: object) -> None:
        if path == "" and not self._stack:
            self._counts.clear()
            self.calls.clear()
            if self._tracker is not None:
                self._tracker.begin_trace()
        call = ModuleCall(path, self._counts[path], self.calls[self._stack[-1]].id if self._stack else None)
        self._counts[path] += 1
        self._stack.append(len(self.calls))
        self.calls.append(call)
        identity = call.id
        inputs = list(named_arguments(self._tree[path].forward_arguments, given, named))
        self.sides[identity] = TracedSide([(name, _info(tensor)) for name, tensor in inputs], [])
        self._numbers[identity] = self._look_up(identity, inputs, state), []

    def _look_up(self, call: CallId, tensors: list[tuple[str, torch.Tensor]], state: object) -> list[int | None]:
        """The tracer's numbers of these tensors."""
        if any(self._is_overwritten(tensor) for _, tensor in tensors):
            self.overwritten.add(call)
        if self._tracker is None:
            return [None] * len(tensors)
        set_tracing_state(state)
        try:
            values = traced_values([tensor for _, tensor in tensors])
        finally:
            set_tracing_state(None)
        return self._tracker.track(values)

    def _is_overwritten(self, tensor: torch.Tensor) -> bool:
        """Whether something has written into the tensor, or into what it is a view of, since the trace began."""
        version = version_of(tensor)
        if not version:
            return False
        base = base_of(tensor)
        return bool(version > self._versions.get(id(tensor if base is None else base), 0))

    def _leave(self, result: object, state: object) -> None:
        identity = self.calls[self._stack[-1]].id
        found = list(named_results(result))
        outputs = [(name, _info(tensor)) for name, tensor in found]
        self.sides[identity] = TracedSide(self.sides[identity].inputs, outputs)
        numbers = self._look_up(identity, found, state)
        self._numbers[identity] = self._numbers[identity][0], numbers
        if len(self._stack) == 1 and self._tracker is not None:
            self._tracker.end_trace(state, numbers)

    def owners(self, nodes: list[JitNode], names: Mapping[int, str]) -> dict[str, CallId]:
        """The call of each value that a node made under one of our labels, by the value's name."""
        found: dict[str, CallId] = {}
        for node in nodes:
            call = self.call_of(node)
            if call is not None:
                found.update({names[number]: call for number in node.outputs if number in names})
        return found

    def call_of(self, node: JitNode) -> CallId | None:
        """The innermost call a node was recorded under; None for nodes that the exporter added."""
        if node.scope not in self._by_scope:
            labels = _LABEL.findall(node.scope)
            self._by_scope[node.scope] = self.calls[int(labels[-1])].id if labels else None
        return self._by_scope[node.scope]

    def call_tree(self) -> CallTree:
        """The calls of the trace, without boundaries."""
        return CallTree({call.id: call for call in self.calls})

    def with_boundaries(self, calls: CallTree, tracker: ValueTracker, names: Mapping[int, str]) -> CallTree:
        """`calls` with their boundaries, in the names of the graph's values.

        Where a call got or returned a tensor that was written into, what data flow has said goes before.
        """

        def boundary(
            side: list[tuple[str, TensorInfo]], numbers: list[int | None], by_flow: tuple[BoundaryTensor, ...]
        ) -> tuple[BoundaryTensor, ...]:
            found = [tracker.find(number) for number in numbers]
            tensors = [names.get(number) if number is not None else None for number in found]
            if len(by_flow) == len(side):
                tensors = [flow.tensor or tensor for flow, tensor in zip(by_flow, tensors, strict=True)]
            return tuple(BoundaryTensor(n, t, info) for (n, info), t in zip(side, tensors, strict=True))

        complete: dict[CallId, ModuleCall] = {}
        for call in calls:
            identity = call.id
            side, numbers = self.sides.get(identity), self._numbers.get(identity)
            if side is None or numbers is None or len(side.outputs) != len(numbers[1]):
                complete[identity] = call
                continue
            flow = (call.inputs, call.outputs) if identity in self.overwritten else ((), ())
            inputs, outputs = boundary(side.inputs, numbers[0], flow[0]), boundary(side.outputs, numbers[1], flow[1])
            complete[identity] = ModuleCall(call.path, call.index, call.parent, inputs, outputs)
        return CallTree(complete)


def _label(number: int) -> str:
    return f"modelexport-call-{number}"


def _info(tensor: torch.Tensor) -> TensorInfo:
    return TensorInfo(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
