"""One eager forward pass, watched: the module calls, their boundaries, and which call ran which operator on what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from modelexport.capture.by_value.eager_graph import Body, EagerRun, Operation, SeenCall, SeenTensor
from modelexport.capture.by_value.torch_fingerprints import take_torch_fingerprint
from modelexport.hierarchy import CallId, ModuleTree, TensorInfo
from modelexport.torch_support import (
    CallWatch,
    ControlFlowWatch,
    FunctionObserver,
    RunningCall,
    buffers_restored,
    copied_inputs,
    named_arguments,
    named_results,
)
from modelexport.torch_support.private import hold_memory, memory_of, tensors_among


def run_eagerly(model: torch.nn.Module, tree: ModuleTree, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> EagerRun:
    """Run the model once and keep who computed what; the model, its buffers and the inputs stay as they were.

    Composite kernels run in parts, as exporters write them: attention as matrix products and a softmax.
    """
    observer = _Observer(tree)
    given, named = copied_inputs(args, dict(kwargs))
    operators = ControlFlowWatch(model, observer.calls, observer)
    with observer.calls.watching(dict(model.named_modules())), buffers_restored(model), torch.no_grad():
        with operators.watching():
            model(*given, **named)
        observer.finish(model)
    return observer.run


class _Observer:
    """Numbers every tensor that an operator reads or makes, and remembers who ran the operator."""

    def __init__(self, tree: ModuleTree) -> None:
        self.run = EagerRun()
        self.calls: CallWatch[SeenCall] = CallWatch(self._enter, self._leave)
        self._tree = tree
        self._begun: set[CallId] = set()
        # The number of what lies at a place in memory, and how often that memory had been written to by then. Not by
        # tensor: torch wraps the results of operators that make views anew.
        self._numbers: dict[_Place, tuple[int, int]] = {}
        self._writes: Counter[int] = Counter()
        self._changes: dict[int, Operation] = {}
        # While these are held, no other memory gets the same identity.
        self._memory: dict[int, Any] = {}
        # Where operators are written down: the run's own, or those of the body that is running.
        self.operations = self.run.operations
        self._sizes: list[int] = []

    def see_operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        """Write down what an operator read and made."""
        call = self._innermost()
        read = tensors_among((args, kwargs))
        inputs = self.numbers(read)
        result = run()
        made = tensors_among(result)
        changed = {_place(tensor)[0] for tensor in made if any(tensor is other for other in read)}
        self._writes.update(changed)
        if made:
            outputs = tuple(self._new(tensor, () if changed else zip(read, inputs, strict=True)) for tensor in made)
            operation = Operation(call, inputs, outputs)
            self.operations.append(operation)
            self._changes.update(dict.fromkeys(changed, operation))
            self._sizes += [tensor.numel() * tensor.element_size() for tensor in made]
        return result

    def see_control_flow(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[FunctionObserver], Any]
    ) -> Any:
        """Write down an operator that is given functions, with what those did."""
        call, given, functions = self._innermost(), self.numbers(tensors_among((args, kwargs))), _Bodies(self)
        result = run(functions)
        bodies = functions.in_order()
        read = [value for body in bodies for value in _read_from_outside(body)]
        outputs = tuple(self._new(tensor) for tensor in tensors_among(result))
        self.operations.append(Operation(call, tuple(dict.fromkeys([*given, *read])), outputs, bodies))
        return result

    def _innermost(self) -> CallId:
        running = self.calls.innermost
        assert running is not None, "operators are shown while a call runs"
        return running.id

    def restorer(self) -> Callable[[], None]:
        """Something to call when the calls seen from now on turn out not to count."""
        begun, calls = set(self._begun), dict(self.run.calls)

        def restore() -> None:
            self._begun, self.run.calls = begun, calls

        return restore

    def numbers(self, tensors: Iterable[torch.Tensor]) -> tuple[int, ...]:
        """The numbers of what the tensors hold now."""
        return tuple(self._number(tensor) for tensor in tensors)

    def _number(self, tensor: torch.Tensor) -> int:
        """The number of what the tensor holds now."""
        place = _place(tensor)
        if place not in self._numbers:
            return self._new(tensor)
        number, writes = self._numbers[place]
        if writes == self._writes[place[0]]:
            return number
        # Changed through a view of it: by the operator that last wrote to the memory they share.
        changed = self._new(tensor)
        change = self._changes[place[0]]
        self.operations.append(Operation(change.call, (number, *change.inputs), (changed,)))
        return changed

    def _new(self, tensor: torch.Tensor, read: Iterable[tuple[torch.Tensor, int]] = ()) -> int:
        known = self.run.fingerprints
        viewed = next((number for other, number in read if _is_same_memory(tensor, other)), None)
        known.append(take_torch_fingerprint(tensor, known[viewed] if viewed is not None else None))
        place = _place(tensor)
        self._numbers[place] = (len(known) - 1, self._writes[place[0]])
        if place[0] not in self._memory:
            self._memory[place[0]] = hold_memory(tensor)
        return len(known) - 1

    def _enter(self, call: RunningCall[SeenCall], args: tuple[Any, ...], kwargs: dict[str, Any]) -> SeenCall:
        parent = call.parent.id if call.parent is not None else None
        inputs = self._seen(named_arguments(self._tree[call.id.path].forward_arguments, args, kwargs))
        if call.id not in self._begun:
            self._begun.add(call.id)
            self.run.calls[call.id] = SeenCall(call.id, parent, inputs)
        return self.run.calls[call.id]

    def _leave(self, call: RunningCall[SeenCall], args: Any, kwargs: Any, result: Any) -> None:
        seen = self.run.calls[call.id]
        seen.outputs = seen.outputs or self._seen(named_results(result))
        passed_on = {tensor.value for tensor in seen.inputs} & {tensor.value for tensor in seen.outputs}
        self.operations.extend(Operation(call.id, (value,), (value,)) for value in sorted(passed_on))

    def finish(self, model: torch.nn.Module) -> None:
        """Note the parameters and buffers that were read, and what results weigh."""
        self.run.mean_bytes = sum(self._sizes) // max(len(self._sizes), 1)
        named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        places = {name: _place(tensor) for name, tensor in named}
        self.run.weights.update({n: self._numbers[place][0] for n, place in places.items() if place in self._numbers})

    def _seen(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[SeenTensor, ...]:
        return tuple(
            SeenTensor(
                name,
                self._number(tensor),
                TensorInfo(tuple(int(size) for size in tensor.shape), str(tensor.dtype).removeprefix("torch.")),
            )
            for name, tensor in tensors
        )


class _Bodies:
    """What the functions of one control-flow operator did, the last time each ran."""

    def __init__(self, observer: _Observer) -> None:
        self._observer = observer
        self._ran: dict[int, Body] = {}
        self._restore: dict[int, Callable[[], None]] = {}

    def in_order(self) -> tuple[Body, ...]:
        """The bodies in the order of the operator's arguments."""
        return tuple(body for _, body in sorted(self._ran.items()))

    def see_function(
        self, place: int, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any], *, dry: bool
    ) -> Any:
        """Write down what one of the functions does apart from what is around it."""
        observer = self._observer
        if place not in self._restore:
            self._restore[place] = observer.restorer()
        around, observer.operations = observer.operations, []
        try:
            given = observer.numbers(tensors_among((args, kwargs)))
            result = run()
            results = observer.numbers(tensors_among(result))
            self._ran[place] = Body(given, tuple(observer.operations), results)
        finally:
            observer.operations = around
        return result

    def discard(self, place: int) -> None:
        """Forget a function whose dry run failed, and the calls in it."""
        self._ran.pop(place, None)
        self._restore[place]()


def _read_from_outside(body: Body) -> Iterator[int]:
    made = {value for operation in body.operations for value in operation.outputs}
    yield from (v for operation in body.operations for v in operation.inputs if v not in made and v not in body.given)


# Identity of the memory, then where and how a tensor lies in it.
_Place = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype, bool, bool]


def _place(tensor: torch.Tensor) -> _Place:
    memory = memory_of(tensor)
    try:
        place = (memory, tensor.storage_offset(), tensor.stride()) if memory is not None else None
    except (RuntimeError, NotImplementedError):
        place = None
    # A wrapper around other tensors, or one of an unusual layout, has nothing of its own in memory.
    memory, offset, stride = place or (id(tensor), 0, ())
    return memory, int(offset), tuple(tensor.shape), stride, tensor.dtype, tensor.is_conj(), tensor.is_neg()


def _is_same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are views of exactly the same elements."""
    memory, offset, _, _, *kind = _place(one)
    other_memory, other_offset, _, _, *other_kind = _place(other)
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
