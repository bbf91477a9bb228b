"""One eager forward pass, watched: the module calls, their boundaries, and which call ran which operator on what."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from modelexport.capture.values import take_fingerprint
from modelexport.fingerprints import Fingerprint
from modelexport.hierarchy import ROOT_CALL, CallId, ModuleTree, TensorInfo
from modelexport.inputs import copied_inputs
from modelexport.preserve import buffers_restored, fused_layers_off
from modelexport.structure import named_arguments, named_results


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One operator that ran: the call it ran in, and the numbers of the values it read and made.

    `inside` are the operators that ran in its bodies, where it has some: control flow.
    """

    call: CallId
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    inside: tuple[Operation, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class SeenTensor:
    """A tensor that entered or left a call: its name there, its value's number and what it looks like."""

    name: str
    value: int
    info: TensorInfo


@dataclasses.dataclass(slots=True)
class SeenCall:
    """A call as the hooks saw it."""

    id: CallId
    parent: CallId | None
    inputs: tuple[SeenTensor, ...] = ()
    outputs: tuple[SeenTensor, ...] = ()


@dataclasses.dataclass
class EagerRun:
    """What one forward pass did.

    Attributes:
        fingerprints: The values by number: for each its fingerprint, where it has one.
        operations: The operators in the order they ran. A call that returned what it was given counts as one too.
        calls: The module calls in the order they began.
        weights: The numbers of the parameters and buffers that were read, by name.
        mean_bytes: The size of a result, on average.
    """

    fingerprints: list[Fingerprint | None] = dataclasses.field(default_factory=list)
    operations: list[Operation] = dataclasses.field(default_factory=list)
    calls: dict[CallId, SeenCall] = dataclasses.field(default_factory=lambda: {ROOT_CALL: SeenCall(ROOT_CALL, None)})
    weights: dict[str, int] = dataclasses.field(default_factory=dict)
    mean_bytes: int = 0


class EagerGraph:
    """An index over an eager run: who makes and reads each value, and which operators only pass one on."""

    def __init__(self, run: EagerRun) -> None:
        self.run = run
        self.makers: dict[int, list[int]] = {}
        self.readers: dict[int, list[int]] = {}
        self.passing: set[int] = set()
        for number, operation in enumerate(run.operations):
            for value in operation.outputs:
                self.makers.setdefault(value, []).append(number)
            for value in operation.inputs:
                self.readers.setdefault(value, []).append(number)
            pairs = itertools.product(operation.inputs, operation.outputs)
            if any(one == other or self.is_moved(one, other) for one, other in pairs):
                self.passing.add(number)
        dynamic = {tensor.value for tensor in run.calls[ROOT_CALL].inputs}
        for operation in run.operations:
            if not dynamic.isdisjoint(operation.inputs):
                dynamic.update(operation.outputs)
        # The values that need no input of the model: weights, and what is made of them and of nothing.
        self.constant = set(range(len(run.fingerprints))) - dynamic

    def is_moved(self, one: int, other: int) -> bool:
        """Whether one value is the other, laid out anew or not."""
        first, second = self.run.fingerprints[one], self.run.fingerprints[other]
        return first is not None and second is not None and first.is_moved(second)

    def call(self, operation: int) -> CallId:
        """The call that ran the operator."""
        return self.run.operations[operation].call

    def spread(self, values: Iterable[int]) -> set[int]:
        """The values, and the same ones wherever operators passed them on."""
        found = set(values)
        waiting = list(found)
        while waiting:
            value = waiting.pop()
            for number in self.readers.get(value, ()):
                if number in self.passing:
                    for other in self.run.operations[number].outputs:
                        if other not in found and self.is_moved(value, other):
                            found.add(other)
                            waiting.append(other)
        return found

    def constants_behind(self, starts: Iterable[int]) -> list[int]:
        """The operators that made, of weights or of nothing, what the starting ones read."""
        found: dict[int, None] = {}
        waiting = list(starts)
        while waiting:
            for value in self.constant.intersection(self.run.operations[waiting.pop()].inputs):
                for maker in self.makers.get(value, ()):
                    if maker not in found:
                        found[maker] = None
                        waiting.append(maker)
        return list(found)

    def region(self, starts: Iterable[int], stops: set[int], survivors: set[int]) -> list[int]:
        """The starting operators, and all on ways back from them that end at one of the stops.

        Ways that end at a value which the ONNX graph has too, but which was not read, were cut by the exporter.
        """
        region: dict[int, bool] = {}
        for start in starts:
            stack = [(start, list(self.run.operations[start].inputs))]
            region.setdefault(start, False)
            while stack:
                number, values = stack[-1]
                if not values:
                    stack.pop()
                    if stack and region[number]:
                        region[stack[-1][0]] = True
                    continue
                value = values.pop()
                if value in stops:
                    region[number] = True
                elif value not in survivors:
                    for maker in self.makers.get(value, ()):
                        if maker in region:
                            region[number] = region[number] or region[maker]
                        else:
                            region[maker] = False
                            stack.append((maker, list(self.run.operations[maker].inputs)))
            region[start] = True
        return [number for number, kept in region.items() if kept]


def run_eagerly(model: torch.nn.Module, tree: ModuleTree, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> EagerRun:
    """Run the model once and keep who computed what; the model, its buffers and the inputs stay as they were.

    Composite kernels run in parts, as exporters write them: attention as matrix products and a softmax.
    """
    watch = _Watch(tree)
    given, named = copied_inputs(args, dict(kwargs))
    with contextlib.ExitStack() as stack:
        stack.enter_context(_hooked(model.named_modules(), watch))
        stack.enter_context(buffers_restored(model))
        # Otherwise control flow is compiled to be run, and nobody sees what its bodies do.
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(fused_layers_off())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(torch.no_grad())
        with watch:
            model(*given, **named)
        watch.finish(model)
    return watch.run


class _Watch(TorchDispatchMode):
    """Numbers every tensor that an operator reads or makes, and remembers who ran the operator."""

    supports_higher_order_operators = True

    def __init__(self, tree: ModuleTree) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.run = EagerRun()
        self._tree = tree
        self._stack: list[CallId] = []
        self._counts: Counter[str] = Counter()
        self._begun: set[CallId] = set()
        # The number of what lies at a place in memory, and how often that memory had been written to by then. Not by
        # tensor: torch wraps the results of operators that make views anew.
        self._numbers: dict[_Place, tuple[int, int]] = {}
        self._writes: Counter[int] = Counter()
        self._changes: dict[int, Operation] = {}
        # While these are held, no other memory gets the same identity.
        self._memory: dict[int, StorageWeakRef] = {}
        # Where operators are written down: the run's own, or those of the body that is running.
        self._operations = self.run.operations
        self._sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._stack:
            return func(*args, **(kwargs or {}))
        if isinstance(func, torch._ops.HigherOrderOperator):
            return self._run_with_bodies(func, args, kwargs or {})
        call = self._stack[-1]
        read = _tensors((args, kwargs))
        inputs = tuple(self._number(tensor) for tensor in read)
        result = func(*args, **(kwargs or {}))
        made = _tensors(result)
        changed = {_place(tensor)[0] for tensor in made if any(tensor is other for other in read)}
        self._writes.update(changed)
        if made:
            outputs = tuple(self._new(tensor, () if changed else zip(read, inputs, strict=True)) for tensor in made)
            operation = Operation(call, inputs, outputs)
            self._operations.append(operation)
            self._changes.update(dict.fromkeys(changed, operation))
            self._sizes += [tensor.numel() * tensor.element_size() for tensor in made]
        return result

    def _run_with_bodies(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator that is given functions, with an eye on what those do."""
        call, around, inside = self._stack[-1], self._operations, list[Operation]()
        given = [self._number(tensor) for tensor in _tensors((args, kwargs))]
        self._operations = inside
        try:
            result = func(*(self._watched(value) for value in args), **kwargs)
        finally:
            self._operations = around
        made = {value for operation in inside for value in operation.outputs}
        read = [value for operation in inside for value in operation.inputs if value not in made]
        outputs = tuple(self._new(tensor) for tensor in _tensors(result))
        self._operations.append(Operation(call, tuple(dict.fromkeys([*given, *read])), outputs, tuple(inside)))
        return result

    def _watched(self, body: object) -> object:
        if not callable(body) or isinstance(body, torch.Tensor):
            return body
        before: Counter[str] | None = None

        def watched(*args: Any, **kwargs: Any) -> Any:
            nonlocal before
            if any(torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in _tensors((args, kwargs))):
                # Not run on what it is given: there are no values to see.
                return body(*args, **kwargs)
            if before is None:
                before = self._counts.copy()
            else:
                # Once more round the loop: an exporter sees one call of each module in it.
                self._counts = before.copy()
            with self:
                return body(*args, **kwargs)

        return watched

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
        self._operations.append(Operation(change.call, (number, *change.inputs), (changed,)))
        return changed

    def _new(self, tensor: torch.Tensor, read: Iterable[tuple[torch.Tensor, int]] = ()) -> int:
        known = self.run.fingerprints
        viewed = next((number for other, number in read if _is_same_memory(tensor, other)), None)
        known.append(take_fingerprint(tensor, known[viewed] if viewed is not None else None))
        place = _place(tensor)
        self._numbers[place] = (len(known) - 1, self._writes[place[0]])
        with contextlib.suppress(RuntimeError, NotImplementedError):
            self._memory.setdefault(place[0], StorageWeakRef(tensor.untyped_storage()))
        return len(known) - 1

    def enter(self, path: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """A call begins."""
        call = CallId(path, self._counts[path])
        self._counts[path] += 1
        parent = self._stack[-1] if self._stack else None
        inputs = self._seen(named_arguments(self._tree[path].forward_arguments, args, kwargs))
        if call not in self._begun:
            self._begun.add(call)
            self.run.calls[call] = SeenCall(call, parent, inputs)
        self._stack.append(call)

    def leave(self, path: str, result: object) -> None:
        """The innermost call of that module ends."""
        if not any(call.path == path for call in self._stack):
            return
        # A call that ended in an exception which its caller caught never came here: it goes with this one.
        while (call := self._stack.pop()).path != path:
            pass
        seen = self.run.calls[call]
        seen.outputs = seen.outputs or self._seen(named_results(result))
        passed_on = {tensor.value for tensor in seen.inputs} & {tensor.value for tensor in seen.outputs}
        self._operations.extend(Operation(call, (value,), (value,)) for value in sorted(passed_on))

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


@contextlib.contextmanager
def _hooked(modules: Iterable[tuple[str, torch.nn.Module]], watch: _Watch) -> Iterator[None]:
    handles: list[torch.utils.hooks.RemovableHandle] = []
    try:
        for path, module in modules:
            if not isinstance(module, torch.jit.ScriptModule):
                before, after = _hooks(path, watch)
                # Before the user's own hooks and after them: a call is all that `module(...)` does.
                handles.append(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
                handles.append(module.register_forward_hook(after))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hooks(path: str, watch: _Watch) -> tuple[Callable[..., None], Callable[..., None]]:
    def before(module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        # While torch compiles a control-flow body it traces the hooks too: they must have no effect there.
        if not torch.compiler.is_dynamo_compiling():
            watch.enter(path, args, kwargs)

    def after(module: torch.nn.Module, args: tuple[object, ...], result: object) -> None:
        if not torch.compiler.is_dynamo_compiling():
            watch.leave(path, result)

    return before, after


def _tensors(value: object) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


# Identity of the memory, then where and how a tensor lies in it.
_Place = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype, bool, bool]


def _place(tensor: torch.Tensor) -> _Place:
    try:
        memory, offset, stride = tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.stride()
    except (RuntimeError, NotImplementedError):
        # Nothing of its own in memory: a wrapper around other tensors, or one of an unusual layout.
        memory, offset, stride = id(tensor), 0, ()
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
