"""One eager forward pass, watched: the module calls, their boundaries, and which call ran which operator on what."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from modelexport.capture.eager_graph import Body, EagerRun, Operation, SeenCall, SeenTensor
from modelexport.capture.values import take_fingerprint
from modelexport.hierarchy import CallId, ModuleTree, TensorInfo
from modelexport.inputs import copied_inputs
from modelexport.preserve import buffers_restored, fused_layers_off
from modelexport.structure import named_arguments, named_results
from modelexport.trial import Trial, try_out


def run_eagerly(model: torch.nn.Module, tree: ModuleTree, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> EagerRun:
    """Run the model once and keep who computed what; the model, its buffers and the inputs stay as they were.

    Composite kernels run in parts, as exporters write them: attention as matrix products and a softmax.
    """
    watch = _Watch(model, tree)
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

    def __init__(self, model: torch.nn.Module, tree: ModuleTree) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.run = EagerRun()
        self._model = model
        self._tree = tree
        self._stack: list[CallId] = []
        self.counts: Counter[str] = Counter()
        self._trial: Trial | None = None
        self._begun: set[CallId] = set()
        # The number of what lies at a place in memory, and how often that memory had been written to by then. Not by
        # tensor: torch wraps the results of operators that make views anew.
        self._numbers: dict[_Place, tuple[int, int]] = {}
        self._writes: Counter[int] = Counter()
        self._changes: dict[int, Operation] = {}
        # While these are held, no other memory gets the same identity.
        self._memory: dict[int, StorageWeakRef] = {}
        # Where operators are written down: the run's own, or those of the body that is running.
        self.operations = self.run.operations
        self._sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._stack:
            return func(*args, **(kwargs or {}))
        if isinstance(func, torch._ops.HigherOrderOperator):
            return self._run_with_bodies(func, args, kwargs or {})
        call = self._stack[-1]
        read = _tensors((args, kwargs))
        inputs = self.numbers(read)
        if self._trial is not None:
            self._trial.check(func, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        if self._trial is not None:
            self._trial.note(result, read)
        made = _tensors(result)
        changed = {_place(tensor)[0] for tensor in made if any(tensor is other for other in read)}
        self._writes.update(changed)
        if made:
            outputs = tuple(self._new(tensor, () if changed else zip(read, inputs, strict=True)) for tensor in made)
            operation = Operation(call, inputs, outputs)
            self.operations.append(operation)
            self._changes.update(dict.fromkeys(changed, operation))
            self._sizes += [tensor.numel() * tensor.element_size() for tensor in made]
        return result

    def _run_with_bodies(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator that is given functions, with an eye on what those do."""
        call, given, functions = self._stack[-1], self.numbers(_tensors((args, kwargs))), _Functions(self, args)
        result = func(*(functions.watched(place, value) for place, value in enumerate(args)), **kwargs)
        bodies = functions.finish()
        read = [value for body in bodies for value in _read_from_outside(body)]
        outputs = tuple(self._new(tensor) for tensor in _tensors(result))
        self.operations.append(Operation(call, tuple(dict.fromkeys([*given, *read])), outputs, bodies))
        return result

    def try_out(self, action: Callable[[], object]) -> bool:
        """Watch something that the model does not run itself. Where that fails, nothing was seen."""
        stack, counts, begun, calls = list(self._stack), self.counts.copy(), set(self._begun), dict(self.run.calls)
        trial, self._trial = self._trial, Trial()
        done = False
        try:
            done = try_out(self._model, action)
        finally:
            self._stack, self._trial = stack, trial
            if not done:
                self.counts, self._begun, self.run.calls = counts, begun, calls
        return done

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
        known.append(take_fingerprint(tensor, known[viewed] if viewed is not None else None))
        place = _place(tensor)
        self._numbers[place] = (len(known) - 1, self._writes[place[0]])
        with contextlib.suppress(RuntimeError, NotImplementedError):
            self._memory.setdefault(place[0], StorageWeakRef(tensor.untyped_storage()))
        return len(known) - 1

    def enter(self, path: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """A call begins."""
        call = CallId(path, self.counts[path])
        self.counts[path] += 1
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
        self.operations.extend(Operation(call, (value,), (value,)) for value in sorted(passed_on))

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


class _Functions:
    """The functions that an operator is given: branches, or the condition and the body of a loop.

    Those that it calls are watched. One that it does not call is tried out on what another of them was given: an
    exporter writes both branches of a decision.
    """

    def __init__(self, watch: _Watch, given: Iterable[Any]) -> None:
        self._watch = watch
        self._functions = [v if callable(v) and not isinstance(v, torch.Tensor) else None for v in given]
        self._arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        # How often each module had been called before a function ran for the first time.
        self._before: dict[int, Counter[str]] = {}
        self._after: dict[int, Counter[str]] = {}
        self._ran: dict[int, Body] = {}

    def watched(self, place: int, value: Any) -> Any:
        """What the operator is to be given in that place: a function with an eye on it, anything else as it is."""
        if self._functions[place] is None:
            return value

        def run(*args: Any, **kwargs: Any) -> Any:
            if any(torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in _tensors((args, kwargs))):
                # Not run on what it is given: there are no values to see.
                return value(*args, **kwargs)
            if self._arguments is None:
                self._arguments = args, kwargs
                # Exporters see the functions in this order, and number calls in it.
                self._try_out(range(place))
            return self._call(place, args, kwargs)

        return run

    def finish(self) -> tuple[Body, ...]:
        """What the functions did; those that were not called are tried out."""
        if self._arguments is not None:
            self._try_out(range(len(self._functions)))
        for place in self._ran:
            # The one that ran last need not be the one that called most.
            self._watch.counts |= self._after[place]
        return tuple(body for _, body in sorted(self._ran.items()))

    def _try_out(self, places: Iterable[int]) -> None:
        args, kwargs = self._arguments or ((), {})
        for place in places:
            if (
                self._functions[place] is not None
                and place not in self._before
                and not self._watch.try_out(functools.partial(self._call, place, args, kwargs))
            ):
                self._ran.pop(place, None)

    def _call(self, place: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        watch, function = self._watch, self._functions[place]
        assert function is not None, "only functions are called"
        if place in self._before:
            # Once more round the loop: an exporter sees one call of each module in it.
            watch.counts = self._before[place].copy()
        else:
            self._before[place] = watch.counts.copy()
        around, watch.operations = watch.operations, []
        try:
            given = watch.numbers(_tensors((args, kwargs)))
            with watch:
                result = function(*args, **kwargs)
            results = watch.numbers(_tensors(result))
            self._ran[place], self._after[place] = Body(given, tuple(watch.operations), results), watch.counts.copy()
        finally:
            watch.operations = around
        return result


def _read_from_outside(body: Body) -> Iterator[int]:
    made = {value for operation in body.operations for value in operation.outputs}
    yield from (v for operation in body.operations for v in operation.inputs if v not in made and v not in body.given)


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
