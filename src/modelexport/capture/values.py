"""What an eager run computed: every operator's results as fingerprints, with the module call that ran it."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from modelexport.capture.structure import named_arguments, named_results
from modelexport.hierarchy import ROOT_CALL, CallId, ModuleTree, TensorInfo

_SAMPLE = 32
_EXTREMES = 6
_MOMENTS = 5
_UNORDERED = _MOMENTS + 2 * _EXTREMES
# Fewer distinct values than this say nothing: masks, padding and constants are equal by chance.
_TELLING = 5
_CHUNK = 2**20
# Sums in another order differ by this much of the tensor's scale, whatever the exporter did to them.
_TOLERANCES = {2: 2e-2, 4: 3e-4, 8: 3e-4}
_EXACT = 1e-6
# Differences below this part of the tolerance are noise; beyond it, the closest candidate is the right one.
_NOISE = 1e-2
_CLOSEST = 4.0
# Numbers beyond these stand for minus infinity in masks; taken for numbers, they would drown the others.
_BEYOND = {2: 3e4, 4: 1e15, 8: 1e15}
_INFINITE = 1e30
_UNDEFINED = 2e30
_GOLDEN = 0.6180339887498949

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Fingerprint:
    """What is kept of a tensor: enough to know it again after another runtime computed it or laid it out anew.

    Attributes:
        group: Class of the element type, number of elements, of undefined and of infinite ones.
        shape: The shape.
        features: Moments, extremes, and a sample of the elements in row-major order.
        scale: The root mean square.
        tolerance: How far, as part of the scale, an equal tensor may be off.
        telling: Whether equality means anything.
    """

    group: tuple[str, int, int, int, int]
    shape: tuple[int, ...]
    features: npt.NDArray[np.float32]
    scale: float
    tolerance: float
    telling: bool

    def same_values(self, other: Fingerprint) -> bool:
        """Whether both hold the same numbers, in whatever layout."""
        return self.group == other.group and self._distance(other, slice(0, _UNORDERED)) <= self._allowed(other)

    def same_layout(self, other: Fingerprint) -> bool:
        """Whether both hold the same numbers in the same order and shape."""
        if self.shape != other.shape or not self.same_values(other):
            return False
        return self._distance(other, slice(_UNORDERED, None)) <= self._allowed(other)

    def _allowed(self, other: Fingerprint) -> float:
        return max(self.tolerance, other.tolerance)

    def _distance(self, other: Fingerprint, part: slice) -> float:
        mine, theirs = self.features[part], other.features[part]
        return float(np.max(np.abs(mine - theirs) / (self.scale + np.abs(mine)), initial=0.0))


def take_fingerprint(tensor: torch.Tensor | Array) -> Fingerprint | None:
    """The fingerprint of a tensor; None for one that is empty, or whose elements cannot be read."""
    array = _readable(tensor) if isinstance(tensor, torch.Tensor) else tensor
    if array is None or array.size == 0 or array.dtype.kind not in "fiub":
        return None
    kind, width = array.dtype.kind, array.dtype.itemsize
    if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
        width = tensor.element_size()
    flat = array.reshape(-1)
    sums, extremes, counts = _summarize(flat, _BEYOND[max(width, 2)] if kind == "f" else np.inf)
    finite = max(flat.size - sum(counts), 1)
    mean, absolute, square, cube, fourth = sums / finite
    scale = float(np.sqrt(square)) or 1.0
    sample = _sample(flat, _BEYOND[max(width, 2)] if kind == "f" else np.inf)
    moments = [mean, absolute, scale, cube / scale**2, fourth / scale**3]
    features = np.concatenate([moments, extremes, sample]).astype(np.float32)
    return Fingerprint(
        group=(kind if kind in "fb" else "i", flat.size, *counts),
        shape=array.shape,
        features=features,
        scale=scale,
        tolerance=_TOLERANCES[max(width, 2)] if kind == "f" else _EXACT,
        telling=kind == "f" and _has_many_values(flat, sample),
    )


def _readable(tensor: torch.Tensor) -> Array | None:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized or tensor.is_meta:
        return None
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        tensor = tensor.float()
    try:
        return tensor.resolve_neg().cpu().numpy()
    except (RuntimeError, TypeError, NotImplementedError):
        return None  # a wrapper around tensors that are elsewhere


def _summarize(flat: Array, beyond: float) -> tuple[Array, Array, tuple[int, int, int]]:
    """Sums of powers, smallest and largest elements, and how many are undefined, infinite, minus infinite."""
    sums = np.zeros(_MOMENTS)
    low, high = np.zeros(0), np.zeros(0)
    counts = np.zeros(3, dtype=int)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK].astype(np.float64)
        with np.errstate(invalid="ignore"):
            finite = np.abs(part) < beyond
        if not finite.all():
            rest = part[~finite]
            counts += [np.isnan(rest).sum(), (rest > 0).sum(), (rest < 0).sum()]
            part = part[finite]
        square = part * part
        sums += [part.sum(), np.abs(part).sum(), square.sum(), (square * part).sum(), (square * square).sum()]
        low, high = _smallest(np.concatenate([low, part])), -_smallest(-np.concatenate([high, part]))
    extremes = np.zeros((2, _EXTREMES))
    extremes[0, : low.size], extremes[1, : high.size] = np.sort(low), np.sort(high)
    return sums, extremes.reshape(-1), (int(counts[0]), int(counts[1]), int(counts[2]))


def _smallest(part: Array) -> Array:
    return np.partition(part, _EXTREMES - 1)[:_EXTREMES] if part.size > _EXTREMES else part


def _sample(flat: Array, beyond: float) -> Array:
    places = np.arange(min(flat.size, _SAMPLE))
    if flat.size > _SAMPLE:
        # Spread evenly, in step with no axis.
        places = (np.arange(1, _SAMPLE + 1) * _GOLDEN % 1.0 * flat.size).astype(np.int64)
    sample = np.zeros(_SAMPLE)
    sample[: places.size] = np.nan_to_num(flat[places].astype(np.float64), nan=_UNDEFINED, posinf=np.inf, neginf=-np.inf)
    outside = (np.abs(sample) >= beyond) & (sample != _UNDEFINED)
    sample[outside] = np.sign(sample[outside]) * _INFINITE
    return sample


def _has_many_values(flat: Array, sample: Array) -> bool:
    if np.unique(sample[: flat.size]).size >= _TELLING:
        return True
    # A sample of a sparse tensor is all zeros: look at the whole.
    return flat.size > _SAMPLE and bool(np.unique(flat[np.isfinite(flat)]).size >= _TELLING)


class ValueIndex:
    """Finds the fingerprints that are equal to a given one."""

    def __init__(self, fingerprints: Sequence[Fingerprint | None]) -> None:
        groups: dict[tuple[str, int, int, int, int], list[int]] = {}
        for number, known in enumerate(fingerprints):
            if known is not None:
                groups.setdefault(known.group, []).append(number)
        self._groups = {
            group: (
                np.array(numbers),
                np.stack([known.features[:_UNORDERED] for n in numbers if (known := fingerprints[n]) is not None]),
                np.array([known.tolerance for n in numbers if (known := fingerprints[n]) is not None]),
            )
            for group, numbers in groups.items()
        }

    def find(self, wanted: Fingerprint) -> list[int]:
        """The numbers of the fingerprints that hold the same values, in order; of near ones only the closest."""
        if wanted.group not in self._groups:
            return []
        numbers, features, tolerances = self._groups[wanted.group]
        mine = wanted.features[:_UNORDERED]
        distances = np.max(np.abs(features - mine) / (wanted.scale + np.abs(mine)), axis=1)
        allowed = np.maximum(tolerances, wanted.tolerance)
        closest = max(float(distances.min()) * _CLOSEST, wanted.tolerance * _NOISE)
        found: list[int] = numbers[(distances <= allowed) & (distances <= closest)].tolist()
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One operator that ran: the call it ran in, and the numbers of the values it read and made."""

    call: CallId
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


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


@dataclasses.dataclass(frozen=True)
class EagerRun:
    """One forward pass: values by number, operators in the order they ran, calls in the order they began.

    Attributes:
        fingerprints: For each value its fingerprint, where it has one.
        operations: The operators. A call that returned what it was given counts as one that passes it on.
        calls: The module calls.
        weights: The numbers of the parameters and buffers that were read, by name.
        largest: The bytes of the largest result.
    """

    fingerprints: list[Fingerprint | None]
    operations: list[Operation]
    calls: dict[CallId, SeenCall]
    weights: dict[str, int]
    largest: int


class _Watch(TorchDispatchMode):
    """Numbers every tensor that an operator reads or makes, and remembers who ran the operator."""

    supports_higher_order_operators = True

    def __init__(self, tree: ModuleTree) -> None:
        super().__init__()
        self.run = EagerRun([], [], {ROOT_CALL: SeenCall(ROOT_CALL, None)}, {}, 0)
        self.largest = 0
        self._tree = tree
        self._stack: list[CallId] = []
        self._counts: Counter[str] = Counter()
        # Each tensor's number, with the version of its content that has it.
        self._numbers: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._changes: dict[int, Operation] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = self._stack[-1] if self._stack else None
        given = [self.number(leaf) for leaf in _tensors((args, kwargs))] if call is not None else []
        read = {id(leaf) for leaf in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        made = list(_tensors(result))
        if call is None or not made:
            return result
        operation = Operation(call, tuple(given), tuple(self._new(leaf) for leaf in made))
        self.run.operations.append(operation)
        for leaf in made:
            self.largest = max(self.largest, leaf.numel() * leaf.element_size())
            if id(leaf) in read:
                self._changes[_storage(leaf)] = operation
        return result

    def number(self, tensor: torch.Tensor) -> int:
        """The number of what the tensor holds now."""
        known = self._numbers.get(tensor)
        if known is None:
            return self._new(tensor)
        number, version = known
        if version == _version(tensor):
            return int(number)
        # Changed through a view of it: by the operator that last wrote to the memory they share.
        changed = self._new(tensor)
        change = self._changes.get(_storage(tensor))
        if change is not None:
            self.run.operations.append(Operation(change.call, (int(number), *change.inputs), (changed,)))
        return changed

    def _new(self, tensor: torch.Tensor) -> int:
        number = len(self.run.fingerprints)
        self.run.fingerprints.append(take_fingerprint(tensor))
        self._numbers[tensor] = (number, _version(tensor))
        return number

    def enter(self, path: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        call = CallId(path, self._counts[path])
        self._counts[path] += 1
        parent = self._stack[-1] if self._stack else None
        inputs = self._seen(named_arguments(self._tree[path].forward_arguments, args, kwargs))
        self.run.calls[call] = SeenCall(call, parent, inputs)
        self._stack.append(call)

    def leave(self, path: str, result: object) -> None:
        if not any(call.path == path for call in self._stack):
            return
        # A call that ended in an exception which its caller caught never came here: it goes with this one.
        while (call := self._stack.pop()).path != path:
            pass
        seen = self.run.calls[call]
        seen.outputs = self._seen(named_results(result))
        passed_on = {tensor.value for tensor in seen.inputs} & {tensor.value for tensor in seen.outputs}
        self.run.operations.extend(Operation(call, (value,), (value,)) for value in sorted(passed_on))

    def _seen(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[SeenTensor, ...]:
        return tuple(
            SeenTensor(
                name,
                self.number(tensor),
                TensorInfo(tuple(int(n) for n in tensor.shape), str(tensor.dtype).removeprefix("torch.")),
            )
            for name, tensor in tensors
        )


def run_eagerly(
    model: torch.nn.Module, tree: ModuleTree, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> EagerRun:
    """Run the model once and keep who computed what. Buffers and inputs stay as they were.

    Composite kernels run in parts (attention as matrix products and a softmax), as exporters write them.
    """
    watch = _Watch(tree)
    modules = [(info.path, model.get_submodule(info.path)) for info in tree]
    given, named = _copied(args, dict(kwargs))
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with _hooked(modules, watch), _buffers_kept(model), torch.no_grad(), sdpa_kernel(SDPBackend.MATH), watch:
            model(*given, **named)
            tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
            weights = {name: watch.number(tensor) for name, tensor in tensors if tensor in watch._numbers}
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return dataclasses.replace(watch.run, weights=weights, largest=watch.largest)


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
        if not torch.compiler.is_dynamo_compiling():
            watch.enter(path, args, kwargs)

    def after(module: torch.nn.Module, args: tuple[object, ...], result: object) -> None:
        if not torch.compiler.is_dynamo_compiling():
            watch.leave(path, result)

    return before, after


@contextlib.contextmanager
def _buffers_kept(model: torch.nn.Module) -> Iterator[None]:
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def _copied(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs that the model may change; the caller's own where they cannot be copied."""
    try:
        return copy.deepcopy((args, kwargs))
    except Exception:  # noqa: BLE001  whatever a user's object raises
        return args, kwargs


def _tensors(value: object) -> Iterator[torch.Tensor]:
    return (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _storage(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return id(tensor)
