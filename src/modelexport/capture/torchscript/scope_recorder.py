"""Watch one TorchScript trace: the module calls in order, their tensors, and the call that ran each node.

The tracer's scope of a node is ``class::name`` for each module that is running. The exporter uses only the ``name``
part for node names. The ``class`` part is therefore replaced by the number of the call, and the file does not change.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import torch

from modelexport.capture import CallTensors
from modelexport.capture.torchscript.hook_scopes import HookScopes, last_node
from modelexport.capture.torchscript.jit_graph import JitNode
from modelexport.capture.torchscript.value_tracker import ValueTracker, traced_values
from modelexport.hierarchy import BoundaryTensor, CallId, CallTree, ModuleCall, ModuleTree, TensorInfo
from modelexport.torch_support import named_arguments, named_results, own_calls_through
from modelexport.torch_support.private import base_of, has_forward_hooks, version_of
from modelexport.torch_support.private_jit import (
    TracingPaused,
    module_calls_through,
    module_labels,
    set_tracing_state,
    tracing_state,
)

_LABEL = re.compile(r"(?:^|/)modelexport-call-(\d+)::")


class ScopeRecorder:
    """Watches one trace: numbers the calls, and adds their numbers to the scopes of the nodes.

    Attributes:
        calls: The calls in the order in which they began.
        tensors: The inputs and outputs of each call.
        overwritten: The calls with an input or output that something had written into. Where that happened through a
            view, the tracer's value for the tensor is the one from before.
        hooks: The scopes of the nodes that forward hooks compute.
    """

    def __init__(
        self, model: torch.nn.Module, tree: ModuleTree, tracker: ValueTracker | None, inputs: list[torch.Tensor]
    ) -> None:
        # Not looked up as attributes: a child may have the name of a method, such as `parameters`.
        watched = {path: m for path, m in model.named_modules() if not isinstance(m, torch.jit.ScriptModule)}
        self._watched = list(watched.values())
        self._paths = {id(module): path for path, module in watched.items()}
        # The module that is called by its class's own `__call__`, until that calls `torch.nn.Module.__call__`.
        self._passed_on: torch.nn.Module | None = None
        self._tree = tree
        self._tracker = tracker
        self._numbers: dict[CallId, tuple[list[int | None], list[int | None]]] = {}
        self.overwritten: set[CallId] = set()
        # Weights and copies of inputs were written into before the trace.
        stored = (*model.parameters(), *model.buffers(), *inputs)
        self._versions = {id(tensor): version for tensor in stored if (version := version_of(tensor))}
        # The numbers of the running calls, and the last node before the hooks of each call.
        self._stack: list[int] = []
        self._hook_starts: list[Any] = []
        self._counts: Counter[str] = Counter()
        self.calls: list[ModuleCall] = []
        self.hooks = HookScopes()
        self._by_scope: dict[str, CallId | None] = {}
        self.tensors: dict[CallId, CallTensors] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the module calls that are traced within the context; the user's own hooks are part of a call."""
        # A compiled root module is not called.
        required = "" in self._paths.values()
        calls = module_calls_through(self._call, self._forward, required=required)
        with calls, own_calls_through(self._watched, self._own_call):
            yield

    def _own_call(self, original: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Record a call by a class's own `__call__`, for which the tracer opens no scope: treat it like a hook."""
        if self._passed_on is module:
            return original(module, *args, **kwargs)
        around, self._passed_on = self._passed_on, module
        try:
            return self._run(original, module, args, kwargs, own=True)
        finally:
            self._passed_on = around

    def _call(self, original: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self._passed_on is module:
            # The same call: its class's own `__call__` has called this one.
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
        with TracingPaused(state):
            self._enter(path, args, kwargs, state)
            self._hook_starts.append(last_node(state) if own or has_forward_hooks(module) else None)
        try:
            result = original(module, *args, **kwargs)
            with TracingPaused(state):
                self._label_hooks(state)
                self._leave(result, state)
            return result
        finally:
            # After an exception, which a caller may catch, no hook runs.
            del self._stack[depth:], self._hook_starts[depth:]

    def _forward(self, original: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Add the call's number to the scope of `forward`; what runs before and after it in a call are its hooks."""
        state = tracing_state()
        if state is None or id(module) not in self._paths or not self._stack:
            return original(module, *args, **kwargs)
        labels = module_labels()
        label = labels.get(module)
        if label:
            # The tracer reads the label next. Only the part after the colons goes into names.
            labels[module] = f"{_label(self._stack[-1])}::{label.partition('::')[2]}"
        if self._hook_starts[-1] is None:
            return original(module, *args, **kwargs)
        with TracingPaused(state):
            self._label_hooks(state)
        result = original(module, *args, **kwargs)
        with TracingPaused(state):
            self._hook_starts[-1] = last_node(state)
        return result

    def _label_hooks(self, state: object) -> None:
        if self._hook_starts[-1] is not None:
            self.hooks.label(state, self._hook_starts[-1], _label(self._stack[-1]))

    def _enter(self, path: str, args: tuple[object, ...], kwargs: dict[str, object], state: object) -> None:
        if path == "" and not self._stack:
            self._counts.clear()
            self.calls.clear()
            if self._tracker is not None:
                self._tracker.begin_trace()
        call = ModuleCall(path, self._counts[path], self.calls[self._stack[-1]].id if self._stack else None)
        self._counts[path] += 1
        self._stack.append(len(self.calls))
        self.calls.append(call)
        call_id = call.id
        inputs = list(named_arguments(self._tree[path].forward_arguments, args, kwargs))
        self.tensors[call_id] = CallTensors([(name, _info(tensor)) for name, tensor in inputs], [])
        self._numbers[call_id] = self._look_up(call_id, inputs, state), []

    def _look_up(self, call: CallId, tensors: list[tuple[str, torch.Tensor]], state: object) -> list[int | None]:
        """Return the numbers of these tensors in the traced graph."""
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
        """Whether something has written into the tensor, or into the tensor it is a view of, since the trace began."""
        version = version_of(tensor)
        if not version:
            return False
        base = base_of(tensor)
        return bool(version > self._versions.get(id(tensor if base is None else base), 0))

    def _leave(self, result: object, state: object) -> None:
        call_id = self.calls[self._stack[-1]].id
        found = list(named_results(result))
        outputs = [(name, _info(tensor)) for name, tensor in found]
        self.tensors[call_id] = CallTensors(self.tensors[call_id].inputs, outputs)
        numbers = self._look_up(call_id, found, state)
        self._numbers[call_id] = self._numbers[call_id][0], numbers
        if len(self._stack) == 1 and self._tracker is not None:
            self._tracker.end_trace(state, numbers)

    def finds_no_output(self, tracker: ValueTracker) -> bool:
        """Whether the tracker found no output of any call in the final graph; it finds inputs by position."""
        numbers = [number for _, outputs in self._numbers.values() for number in outputs]
        return bool(numbers) and all(tracker.find(number) is None for number in numbers)

    def owners(self, nodes: list[JitNode], names: Mapping[int, str]) -> dict[str, CallId]:
        """Return the call that computed each value, by the value's name."""
        found: dict[str, CallId] = {}
        for node in nodes:
            call = self.call_of(node)
            if call is not None:
                found.update({names[number]: call for number in node.outputs if number in names})
        return found

    def call_of(self, node: JitNode) -> CallId | None:
        """Return the innermost call in the scope of a node; None for nodes that the exporter added."""
        if node.scope not in self._by_scope:
            labels = _LABEL.findall(node.scope)
            self._by_scope[node.scope] = self.calls[int(labels[-1])].id if labels else None
        return self._by_scope[node.scope]

    def call_tree(self) -> CallTree:
        """Return the calls of the trace, without boundary tensors."""
        return CallTree({call.id: call for call in self.calls})

    def with_boundaries(self, calls: CallTree, tracker: ValueTracker, names: Mapping[int, str]) -> CallTree:
        """Return `calls` with their boundary tensors, by the names of the graph's values.

        For a call with a tensor that was written into, the boundary tensors that `calls` has take precedence.
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
            call_id = call.id
            side, numbers = self.tensors.get(call_id), self._numbers.get(call_id)
            if side is None or numbers is None or len(side.outputs) != len(numbers[1]):
                complete[call_id] = call
                continue
            flow = (call.inputs, call.outputs) if call_id in self.overwritten else ((), ())
            inputs, outputs = boundary(side.inputs, numbers[0], flow[0]), boundary(side.outputs, numbers[1], flow[1])
            complete[call_id] = msgspec.structs.replace(call, inputs=inputs, outputs=outputs)
        return CallTree(complete)


def _label(number: int) -> str:
    return f"modelexport-call-{number}"


def _info(tensor: torch.Tensor) -> TensorInfo:
    return TensorInfo(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
