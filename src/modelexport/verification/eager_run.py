"""One forward pass of the model in eager PyTorch, watched: what each call was given, returned and computed.

The model is left as it was: hooks, flags, buffers, gradients and the random state.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch._higher_order_ops
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from modelexport.errors import InputError
from modelexport.hierarchy import CallId, ForwardArgument
from modelexport.preserve import TURN, buffers_restored, evaluation_mode, preserved_state
from modelexport.structure import named_arguments, named_results


@dataclasses.dataclass
class EagerCall:
    """One call of a module.

    Attributes:
        id: Its identity, as documents write it.
        parent: The call that made it; None for the root's.
        arguments: The tensors it was given, by the forward argument and the way to them: ``states.0.key``.
        results: The tensors it returned: ``output`` where it returned one, else the way to each.
    """

    id: str
    parent: str | None
    arguments: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    results: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class EagerRun:
    """What a forward pass did.

    Attributes:
        calls: The calls by identity, in the order they began.
        result: What the model returned, as it returned it.
    """

    calls: dict[str, EagerCall]
    result: Any


# Called with each tensor that an operator made, the call that ran it, and the other tensors that it read.
Witness = Callable[[torch.Tensor, str, list[torch.Tensor]], None]


def run_eagerly(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    witness: Witness | None = None,
    training: bool = False,
) -> EagerRun:
    """Run the model once.

    Args:
        model: The model.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        witness: Called with every operator's result while it is fresh; keep what you need of it.
        training: Run the model in the mode it is in, instead of evaluation mode.

    Returns:
        The calls with copies of what they were given and returned.

    Raises:
        InputError: The model does not run on these arguments.
    """
    watch = _Watch(model, witness)
    mode = contextlib.nullcontext() if training else evaluation_mode(model)
    with TURN, preserved_state(model), buffers_restored(model), mode, plain_control_flow(), _operator_by_operator():
        handles = watch.attach()
        try:
            with torch.no_grad(), watch:
                result = model(*args, **kwargs)
        except Exception as error:
            message = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(f"{type(model).__name__} does not run on these inputs: {message}") from error
        finally:
            for handle in handles:
                handle.remove()
    return EagerRun(watch.calls, result)


class _Watch(TorchDispatchMode):
    """Keeps the stack of running calls, and sees every operator's result."""

    supports_higher_order_operators = True

    def __init__(self, model: torch.nn.Module, witness: Witness | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: dict[str, EagerCall] = {}
        self._model = model
        self._witness = witness
        self._running: list[str] = []
        self._counts: Counter[str] = Counter()
        # While a hook copies a tensor: that is nobody's work.
        self._looking = False

    def attach(self) -> list[Any]:
        handles = []
        for path, module in self._model.named_modules():
            # The first to see what a call is given, the last to see what it returns.
            handles.append(module.register_forward_pre_hook(self._entering(path), with_kwargs=True, prepend=True))
            handles.append(module.register_forward_hook(self._leaving, with_kwargs=True))
        return handles

    def _entering(self, path: str) -> Callable[..., None]:
        def hook(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            call = str(CallId(path, self._counts[path]))
            self._counts[path] += 1
            parent = self._running[-1] if self._running else None
            self._running.append(call)
            with self._aside():
                given = named_arguments(_forward_arguments(module), args, kwargs)
                self.calls[call] = EagerCall(call, parent, _copies(given))

        return hook

    def _leaving(self, module: torch.nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        call = self._running.pop()
        with self._aside():
            self.calls[call].results = _copies(named_results(result))
            if self._witness is None:
                return
            # A call that returns what it was given ran no operator, but an exporter may write one for it.
            given = {id(leaf) for leaf in pytree.tree_leaves((args, kwargs))}
            for leaf in pytree.tree_leaves(result):
                if isinstance(leaf, torch.Tensor) and id(leaf) in given:
                    self._witness(leaf, call, [leaf])

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        self._looking = True
        try:
            yield
        finally:
            self._looking = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._witness is not None and self._running and not self._looking:
            with self._aside():
                read = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
                for leaf in pytree.tree_leaves(result):
                    if isinstance(leaf, torch.Tensor) and leaf.numel():
                        # An operator that works in place returns what it read, with other values by now.
                        self._witness(leaf, self._running[-1], [other for other in read if other is not leaf])
        return result


def _forward_arguments(module: torch.nn.Module) -> tuple[ForwardArgument, ...]:
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(ForwardArgument(parameter.name, parameter.kind.name.lower()) for parameter in parameters)


def _copies(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    # Copied at once: what comes later may work in place.
    return {name: tensor.detach().clone() for name, tensor in tensors}


def as_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The tensor's numbers, widened where numpy lacks the type."""
    tensor = tensor.detach()
    if tensor.is_sparse or tensor.is_quantized:
        tensor = tensor.to_dense() if tensor.is_sparse else tensor.dequantize()
    if tensor.is_floating_point() and tensor.element_size() < torch.float32.itemsize:
        tensor = tensor.float()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.resolve_neg().cpu().numpy()


@contextlib.contextmanager
def _operator_by_operator() -> Iterator[None]:
    """Within, layers that torch can run as one operator run as the many they are exported as."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


# --- control flow as plain Python, so that the modules that its bodies call are seen ----------------------------


def _cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    return true_fn(*operands) if bool(pred) else false_fn(*operands)


def _while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any) -> Any:
    carried = tuple(carried_inputs)
    while bool(cond_fn(*carried)):
        carried = tuple(body_fn(*carried))
    return carried


def _scan(combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    leaves, spec = pytree.tree_flatten(xs)
    steps = list(range(leaves[0].shape[dim]))
    carry, results = init, []
    for step in reversed(steps) if reverse else steps:
        part = pytree.tree_unflatten([leaf.select(dim, step) for leaf in leaves], spec)
        carry, result = combine_fn(carry, part)
        results.append(result)
    if reverse:
        results.reverse()
    return carry, pytree.tree_map(lambda *parts: torch.stack(parts), *results)


@contextlib.contextmanager
def plain_control_flow() -> Iterator[None]:
    """Within, torch's control flow runs as the Python it stands for, instead of being compiled."""
    places: list[tuple[Any, str, Any]] = [
        (torch, "cond", _cond),
        (torch._higher_order_ops, "cond", _cond),
        (torch._higher_order_ops, "while_loop", _while_loop),
        (torch._higher_order_ops, "scan", _scan),
    ]
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    try:
        for owner, name, plain in places:
            setattr(owner, name, plain)
        yield
    finally:
        for owner, name, original in kept:
            setattr(owner, name, original)
