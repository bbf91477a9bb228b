"""An independent judge of attributions: tensor values of the ONNX graph against eager PyTorch.

The model runs once in eager PyTorch; every operator's result is kept with the module call that ran it. The ONNX
graph runs once in onnxruntime with every intermediate tensor as an output. A tensor that equals results of some
calls only was computed there: its node must be owned by one of them, or name one as contributor. Subgraphs of control
flow are judged too: in PyTorch they run as plain Python, in ONNX their tensors are made outputs of the
owning node. Nothing here is shared with the code that made the attributions.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
import torch._higher_order_ops
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.eager_calls import call_name
from tests.support.subgraphs import expose_subgraphs

_FEW_VALUES = 4


@dataclasses.dataclass(frozen=True)
class Case:
    """A node whose result was computed by other calls than the ones it is attributed to."""

    node: str
    claimed: tuple[str, ...]
    computed_by: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """How many tensors could be judged, and which of them are wrong."""

    judged: int
    tensors: int
    contaminated: tuple[Case, ...]


class _Eager(TorchDispatchMode):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.results: list[tuple[np.ndarray, str]] = []
        self.ran: set[str] = set()
        # While a hook copies a tensor: that is nobody's work.
        self._looking = False
        self._stack: list[str] = []
        self._counts: Counter[str] = Counter()
        self._handles: list[Any] = []
        for path, module in model.named_modules():
            self._handles.append(module.register_forward_pre_hook(self._enter(path), prepend=True))
            self._handles.append(module.register_forward_hook(self._leave, with_kwargs=True))

    def _enter(self, path: str) -> Any:
        def hook(module: torch.nn.Module, args: Any) -> None:
            if torch.compiler.is_dynamo_compiling():
                return
            index = self._counts[path]
            self._counts[path] += 1
            self._stack.append(call_name(path, index))

        return hook

    def _leave(self, module: torch.nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        if torch.compiler.is_dynamo_compiling():
            return
        call = self._stack.pop()
        # A call that returns what it was given ran no operator, but the exporter may write one for it.
        given = {id(leaf) for leaf in torch.utils._pytree.tree_leaves((args, kwargs))}
        self._looking = True
        for leaf in torch.utils._pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and id(leaf) in given:
                self.results.append((_array(leaf), call))
        self._looking = False

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._looking:
            return result
        for leaf in torch.utils._pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and self._stack and leaf.numel():
                self.ran.add(self._stack[-1])
                self.results.append((_array(leaf), self._stack[-1]))
                if _writes(func) and leaf._base is not None:
                    # What was written into a part has changed the whole, which no operator returns.
                    self.results.append((_array(leaf._base), self._stack[-1]))
        return result


def _writes(func: Any) -> bool:
    return isinstance(func, torch._ops.OpOverload) and func._schema.is_mutable


def _array(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return tensor.detach().contiguous().clone().numpy()


@dataclasses.dataclass(frozen=True)
class EagerRun:
    """Every operator's result with the call that ran it, what calls only passed on included; and who ran any."""

    results: list[tuple[np.ndarray, str]]
    ran: frozenset[str]


def run_eagerly(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[np.ndarray, str]]:
    return watch(model, args, kwargs).results


def watch(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> EagerRun:
    recorder = _Eager(model)
    # What was compiled for a subgraph under other hooks or modes must not be used here, nor this elsewhere.
    torch._dynamo.reset()
    try:
        with torch.no_grad(), plain_control_flow(), recorder:
            model(*args, **kwargs)
    finally:
        torch._dynamo.reset()
        recorder.remove()
    return EagerRun(recorder.results, frozenset(recorder.ran))


# --- control flow as plain Python, so that the modules that its subgraphs call are seen ---------------------------


def _cond(pred: Any, true_fn: Any, false_fn: Any, operands: Sequence[Any] = ()) -> Any:
    return true_fn(*operands) if bool(pred) else false_fn(*operands)


def _scan(combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> tuple[Any, Any]:
    leaves, spec = torch.utils._pytree.tree_flatten(xs)
    steps = range(leaves[0].shape[dim])
    carry, results = init, []
    for step in reversed(steps) if reverse else steps:
        carry, result = combine_fn(
            carry, torch.utils._pytree.tree_unflatten([x.select(dim, step) for x in leaves], spec)
        )
        results.append(result)
    if reverse:
        results.reverse()
    return carry, torch.utils._pytree.tree_map(lambda *parts: torch.stack(parts), *results)


def _while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Sequence[Any]) -> Any:
    carried = tuple(carried_inputs)
    while bool(cond_fn(*carried)):
        carried = tuple(body_fn(*carried))
    return carried


@contextlib.contextmanager
def plain_control_flow() -> Iterator[None]:
    """Within, torch's own control flow runs as the Python it stands for, instead of compiled."""
    names = ((torch, "cond", _cond), (torch._higher_order_ops, "cond", _cond))
    names += ((torch._higher_order_ops, "scan", _scan), (torch._higher_order_ops, "while_loop", _while_loop))
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in names]
    for owner, name, plain in names:
        setattr(owner, name, plain)
    try:
        yield
    finally:
        for owner, name, original in kept:
            setattr(owner, name, original)


def run_onnx(path: Path, feeds: Mapping[str, np.ndarray], *, subgraphs: bool = False) -> dict[str, np.ndarray]:
    """Every tensor that a node of the main graph produces; with `subgraphs`, also theirs: ``If_3/then_branch/add_7``.

    A tensor in a loop has the values of all rounds, one behind the other.
    """
    model = onnx.load(path)
    if subgraphs:
        expose_subgraphs(model)
    kept = {output.name for output in model.graph.output}
    names = [name for node in model.graph.node for name in node.output if name]
    del model.graph.value_info[:]
    for name in names:
        if name not in kept:
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    found = zip(outputs, session.run(outputs, dict(feeds)), strict=True)
    return {name: value for name, value in found if isinstance(value, np.ndarray)}


def says_something(array: np.ndarray) -> bool:
    """Whether equality means anything: masks and constants are equal by chance."""
    return array.dtype.kind == "f" and len(np.unique(array)) > _FEW_VALUES and bool(np.isfinite(array).all())


def same_values(one: np.ndarray, other: np.ndarray) -> bool:
    if one.size != other.size:
        return False
    first, second = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    scale = float(np.abs(first).max()) or 1.0
    tolerance = 1e-4 * scale
    if abs(first.sum() - second.sum()) > tolerance * first.size:
        return False
    if np.abs(first - second).max() <= tolerance:
        return True
    return bool(np.abs(np.sort(first) - np.sort(second)).max() <= tolerance * 0.1)


def computed_by(array: np.ndarray, eager: Iterable[tuple[np.ndarray, str]]) -> set[str]:
    """The calls that computed this value in eager PyTorch."""
    return {call for other, call in eager if other.dtype.kind == "f" and same_values(array, other)}


def _is_upstream(name: str, array: np.ndarray, sources: dict[str, list[str]], known: dict[str, np.ndarray]) -> bool:
    """Whether a tensor that this one was made of, near or far, has the same values."""
    waiting, seen = list(sources.get(name, ())), set()
    while waiting:
        source = waiting.pop()
        if source in seen:
            continue
        seen.add(source)
        if source in known and same_values(array, known[source]):
            return True
        waiting.extend(sources.get(source, ()))
    return False


def judge(
    onnx_path: Path,
    claims: Mapping[str, tuple[str, ...]],
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    feeds: dict[str, np.ndarray],
) -> Verdict:
    """Check `claims` (for each tensor its node's owner and contributors, as calls) by values."""
    eager = run_eagerly(model, args, kwargs)
    return judge_values(
        onnx.load(onnx_path, load_external_data=False), claims, eager, run_onnx(onnx_path, feeds), feeds
    )


def judge_values(
    graph: onnx.ModelProto,
    claims: Mapping[str, tuple[str, ...]],
    eager: Iterable[tuple[np.ndarray, str]],
    tensors: Mapping[str, np.ndarray],
    feeds: Mapping[str, np.ndarray],
) -> Verdict:
    """The same, of runs that were made before; claims and runs name calls, or both name modules."""
    known = {**feeds, **tensors}
    sources = {name: list(node.input) for node in graph.graph.node for name in node.output}
    by_size: dict[int, list[tuple[np.ndarray, str]]] = {}
    for array, call in eager:
        if array.dtype.kind == "f":
            by_size.setdefault(array.size, []).append((array, call))
    judged, cases = 0, []
    for name, array in tensors.items():
        if name not in claims or not says_something(array):
            continue
        in_loop = "/" in name and name not in sources
        parts = [array, *array] if in_loop and array.ndim else [array]
        computed = {call for part in parts for call in computed_by(part, by_size.get(part.size, ()))}
        if not computed:
            continue
        if computed.isdisjoint(claims[name]) and _is_upstream(name, array, sources, known):
            # It only passes on, picks or lays out anew what was there before: eager PyTorch need not have run it.
            continue
        judged += 1
        if computed.isdisjoint(claims[name]):
            cases.append(Case(name, claims[name], tuple(sorted(computed))))
    return Verdict(judged, len(tensors), tuple(cases))
