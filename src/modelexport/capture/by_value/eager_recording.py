"""Records one eager forward pass: module calls, their inputs and outputs, and the operators that each call ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from modelexport.capture.by_value.eager_graph import EagerRun, FunctionRun, Operation, RecordedCall, RecordedTensor
from modelexport.graph import Array, Fingerprint, take_fingerprint
from modelexport.hierarchy import CallId, ModuleTree, TensorInfo
from modelexport.torch_support import (
    CallWatch,
    ControlFlowWatch,
    FunctionObserver,
    RunningCall,
    copied_inputs,
    named_arguments,
    named_results,
    weights_restored,
)
from modelexport.torch_support.private import storage_id, storage_reference, tensors_among


def run_eagerly(model: torch.nn.Module, tree: ModuleTree, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> EagerRun:
    """Run the model once and record its calls and operators. The model, its buffers and the inputs do not change.

    Composite kernels are decomposed as exporters do it: attention into matrix products and a softmax.
    """
    recorder = _Recorder(tree)
    given, named = copied_inputs(args, dict(kwargs))
    operators = ControlFlowWatch(model, recorder.calls, recorder)
    with recorder.calls.watching(dict(model.named_modules())), weights_restored(model), torch.no_grad():
        with operators.watching():
            model(*given, **named)
        recorder.finish(model)
    return recorder.run


class _Recorder:
    """Numbers every value that an operator consumes or produces, and records the call of each operator."""

    def __init__(self, tree: ModuleTree) -> None:
        self.run = EagerRun()
        self.calls: CallWatch[RecordedCall] = CallWatch(self._enter, self._leave)
        self._tree = tree
        self._begun: set[CallId] = set()
        # For each memory location the number of its value, and the count of writes to that memory at that time. Not by
        # tensor object: torch creates new ones for the outputs of view operators.
        self._numbers: dict[_Location, tuple[int, int]] = {}
        self._writes: Counter[int] = Counter()
        self._last_write: dict[int, Operation] = {}
        # References that keep torch from reusing the id of this memory.
        self._memory: dict[int, Any] = {}
        # The list to append to: that of the run, or of the control-flow function that is running.
        self.operations = self.run.operations
        self._sizes: list[int] = []

    def see_operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        """Record the inputs and outputs of an operator."""
        call = self._innermost()
        consumed = tensors_among((args, kwargs))
        inputs = self.numbers(consumed)
        result = run()
        produced = tensors_among(result)
        written = {_location(tensor)[0] for tensor in produced if any(tensor is other for other in consumed)}
        self._writes.update(written)
        if produced:
            sources = () if written else tuple(zip(consumed, inputs, strict=True))
            outputs = tuple(self._new(tensor, sources) for tensor in produced)
            operation = Operation(call, inputs, outputs)
            self.operations.append(operation)
            self._last_write.update(dict.fromkeys(written, operation))
            self._sizes += [tensor.numel() * tensor.element_size() for tensor in produced]
        return result

    def see_control_flow(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[FunctionObserver], Any]
    ) -> Any:
        """Record a control-flow operator, with the runs of its functions."""
        call, inputs, recorder = self._innermost(), self.numbers(tensors_among((args, kwargs))), _FunctionRecorder(self)
        result = run(recorder)
        functions = recorder.in_order()
        captured = [value for function in functions for value in _captured_values(function)]
        outputs = tuple(self._new(tensor) for tensor in tensors_among(result))
        self.operations.append(Operation(call, tuple(dict.fromkeys([*inputs, *captured])), outputs, functions))
        return result

    def _innermost(self) -> CallId:
        running = self.calls.innermost
        assert running is not None, "operators are observed only during a call"
        return running.id

    def restorer(self) -> Callable[[], None]:
        """A function that discards the calls recorded from now on."""
        begun, calls = set(self._begun), dict(self.run.calls)

        def restore() -> None:
            self._begun, self.run.calls = begun, calls

        return restore

    def numbers(self, tensors: Iterable[torch.Tensor]) -> tuple[int, ...]:
        """The numbers of the current values of the tensors."""
        return tuple(self._number(tensor) for tensor in tensors)

    def _number(self, tensor: torch.Tensor) -> int:
        """The number of the current value of the tensor."""
        location = _location(tensor)
        if location not in self._numbers:
            return self._new(tensor)
        number, writes = self._numbers[location]
        if writes == self._writes[location[0]]:
            return number
        # Changed through a view: the producer is the operator that last wrote to the shared memory.
        changed = self._new(tensor)
        write = self._last_write[location[0]]
        self.operations.append(Operation(write.call, (number, *write.inputs), (changed,)))
        return changed

    def _new(self, tensor: torch.Tensor, sources: Iterable[tuple[torch.Tensor, int]] = ()) -> int:
        """A new number for the current value of the tensor; `sources` are tensors that it may be a view of."""
        fingerprints = self.run.fingerprints
        viewed = next((number for other, number in sources if _is_same_memory(tensor, other)), None)
        fingerprints.append(take_torch_fingerprint(tensor, fingerprints[viewed] if viewed is not None else None))
        location = _location(tensor)
        self._numbers[location] = (len(fingerprints) - 1, self._writes[location[0]])
        if location[0] not in self._memory:
            self._memory[location[0]] = storage_reference(tensor)
        return len(fingerprints) - 1

    def _enter(self, call: RunningCall[RecordedCall], args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordedCall:
        parent = call.parent.id if call.parent is not None else None
        inputs = self._recorded(named_arguments(self._tree[call.id.path].forward_arguments, args, kwargs))
        if call.id not in self._begun:
            self._begun.add(call.id)
            self.run.calls[call.id] = RecordedCall(call.id, parent, inputs)
        return self.run.calls[call.id]

    def _leave(self, call: RunningCall[RecordedCall], args: Any, kwargs: Any, result: Any) -> None:
        recorded = self.run.calls[call.id]
        recorded.outputs = recorded.outputs or self._recorded(named_results(result))
        returned = {tensor.value for tensor in recorded.inputs} & {tensor.value for tensor in recorded.outputs}
        self.operations.extend(Operation(call.id, (value,), (value,)) for value in sorted(returned))

    def finish(self, model: torch.nn.Module) -> None:
        """Record the parameters and buffers that were consumed, and the mean size of outputs."""
        self.run.mean_bytes = sum(self._sizes) // max(len(self._sizes), 1)
        named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        locations = {name: _location(tensor) for name, tensor in named}
        found = {name: self._numbers[at][0] for name, at in locations.items() if at in self._numbers}
        self.run.weights.update(found)

    def _recorded(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[RecordedTensor, ...]:
        return tuple(
            RecordedTensor(
                name,
                self._number(tensor),
                TensorInfo(tuple(int(size) for size in tensor.shape), str(tensor.dtype).removeprefix("torch.")),
            )
            for name, tensor in tensors
        )


class _FunctionRecorder:
    """Records the last run of each function of one control-flow operator."""

    def __init__(self, recorder: _Recorder) -> None:
        self._recorder = recorder
        self._runs: dict[int, FunctionRun] = {}
        self._restore: dict[int, Callable[[], None]] = {}

    def in_order(self) -> tuple[FunctionRun, ...]:
        """The runs in the order of the operator's arguments."""
        return tuple(function for _, function in sorted(self._runs.items()))

    def see_function(
        self, position: int, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any], *, dry: bool
    ) -> Any:
        """Record the operators of one function separately from those around it."""
        recorder = self._recorder
        if position not in self._restore:
            self._restore[position] = recorder.restorer()
        outer, recorder.operations = recorder.operations, []
        try:
            inputs = recorder.numbers(tensors_among((args, kwargs)))
            result = run()
            outputs = recorder.numbers(tensors_among(result))
            self._runs[position] = FunctionRun(inputs, tuple(recorder.operations), outputs)
        finally:
            recorder.operations = outer
        return result

    def discard(self, position: int) -> None:
        """Discard a function whose dry run failed, and the calls in it."""
        self._runs.pop(position, None)
        self._restore[position]()


def _captured_values(function: FunctionRun) -> Iterator[int]:
    """The values that a function consumes from outside without their being arguments."""
    own = {*function.inputs, *(value for operation in function.operations for value in operation.outputs)}
    yield from (value for operation in function.operations for value in operation.inputs if value not in own)


# The id of the memory, then offset, shape, strides, type, and whether the tensor is a conjugate or negative view.
_Location = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype, bool, bool]


def _location(tensor: torch.Tensor) -> _Location:
    memory = storage_id(tensor)
    try:
        location = (memory, tensor.storage_offset(), tensor.stride()) if memory is not None else None
    except (RuntimeError, NotImplementedError):
        location = None
    # A wrapper of other tensors or a sparse tensor has no storage of its own.
    memory, offset, stride = location or (id(tensor), 0, ())
    return memory, int(offset), tuple(tensor.shape), stride, tensor.dtype, tensor.is_conj(), tensor.is_neg()


def _is_same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are views of exactly the same elements."""
    memory, offset, _, _, *kind = _location(one)
    other_memory, other_offset, _, _, *other_kind = _location(other)
    return (
        (memory, offset, kind) == (other_memory, other_offset, other_kind)
        and one.layout is other.layout is torch.strided
        and one.numel() == other.numel()
        and _is_dense(one)
        and _is_dense(other)
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def take_torch_fingerprint(tensor: torch.Tensor, moved: Fingerprint | None = None) -> Fingerprint | None:
    """The fingerprint of a tensor; None for an empty tensor, or one without readable elements.

    `moved` is the fingerprint of a tensor of which this one is a view with the same elements.
    """
    array = _readable(tensor)
    return take_fingerprint(array, tensor.element_size(), moved) if array is not None else None


def _readable(tensor: torch.Tensor) -> Array | None:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized or tensor.is_meta:
        return None
    tensor = tensor.detach()
    try:
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())
        if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
            tensor = tensor.float()
        array: Array = tensor.resolve_neg().cpu().numpy()
    except (RuntimeError, TypeError, NotImplementedError):
        return None  # a wrapper of other tensors
    return array
