"""One forward pass of the model in eager PyTorch, watched: what each call was given, returned and computed.

The model is left as it was: hooks, flags, buffers, gradients and the random state.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from modelexport.errors import InputError
from modelexport.hierarchy import CallId, ForwardArgument
from modelexport.preserve import TURN, buffers_restored, evaluation_mode, preserved_state
from modelexport.structure import named_arguments, named_results
from modelexport.trial import Trial, try_out


@dataclasses.dataclass
class EagerCall:
    """One call of a module.

    Attributes:
        id: Its identity, as documents write it.
        path: The module's path.
        parent: The call that made it; None for the root's.
        arguments: The tensors it was given, by the forward argument and the way to them: ``states.0.key``.
        results: The tensors it returned: ``output`` where it returned one, else the way to each.
        in_body: Whether it ran in a branch or a loop. Of the rounds of a loop the last one is kept.
    """

    id: str
    path: str
    parent: str | None
    arguments: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    results: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    in_body: bool = False


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
    seed: int | None = None,
) -> EagerRun:
    """Run the model once.

    Args:
        model: The model.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        witness: Called with every operator's result while it is fresh; keep what you need of it.
        training: Run the model in the mode it is in, instead of evaluation mode.
        seed: Where torch's random numbers begin; None takes them as they come.

    Returns:
        The calls with copies of what they were given and returned.

    Raises:
        InputError: The model does not run on these arguments.
    """
    watch = _Watch(model, witness)
    mode = contextlib.nullcontext() if training else evaluation_mode(model)
    with TURN, preserved_state(model), buffers_restored(model), mode, _operator_by_operator():
        handles = watch.attach()
        if seed is not None:
            torch.manual_seed(seed)
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
        self.counts: Counter[str] = Counter()
        self._bodies = 0
        self._trial: Trial | None = None
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
            call = str(CallId(path, self.counts[path]))
            self.counts[path] += 1
            parent = self._running[-1] if self._running else None
            self._running.append(call)
            with self._aside():
                given = named_arguments(_forward_arguments(module), args, kwargs)
                self.calls[call] = EagerCall(call, path, parent, _copies(given), in_body=self._bodies > 0)

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
        if isinstance(func, torch._ops.HigherOrderOperator) and self._running:
            return self._run_with_bodies(func, args, kwargs or {})
        if self._trial is not None:
            self._trial.check(func, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        if self._trial is not None:
            self._trial.note(result, (args, kwargs))
        if self._witness is not None and self._running and not self._looking:
            with self._aside():
                read = _tensors((args, kwargs))
                for leaf in _tensors(result):
                    if leaf.numel():
                        # An operator that works in place returns what it read, with other values by now.
                        self._witness(leaf, self._running[-1], [other for other in read if other is not leaf])
        return result

    def _run_with_bodies(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator that is given functions, with an eye on what those do."""
        bodies = _Bodies(self, args)
        self._bodies += 1
        try:
            result = func(*(bodies.watched(place, value) for place, value in enumerate(args)), **kwargs)
            bodies.finish()
        finally:
            self._bodies -= 1
        if self._witness is not None:
            with self._aside():
                for leaf in _tensors(result):
                    if leaf.numel():
                        self._witness(leaf, self._running[-1], _tensors((args, bodies.returned)))
        return result

    def try_out(self, action: Callable[[], object]) -> None:
        """Watch something that the model does not run itself. Where it fails, its calls did not come to an end."""
        running, calls, trial = list(self._running), dict(self.calls), self._trial
        self._trial = Trial()
        try:
            if not try_out(self._model, action):
                self.calls = calls
        finally:
            self._running, self._trial = running, trial


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
    """Within, layers that torch can run as one operator run as the many they are exported as, bodies included."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # Control flow is compiled to be run otherwise, and nobody sees what its bodies do.
        with sdpa_kernel(SDPBackend.MATH), torch.compiler.set_stance("force_eager"):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


# --- control flow -----------------------------------------------------------------------------------------------


class _Bodies:
    """The functions that one operator is given: branches, or the condition and the body of a loop.

    Those that it calls are watched. One that it does not call is tried out on what another of them was given: an
    exporter writes both branches of a decision.
    """

    def __init__(self, watch: _Watch, given: Iterable[Any]) -> None:
        self._watch = watch
        self._functions = [
            value if callable(value) and not isinstance(value, torch.Tensor) else None for value in given
        ]
        self._arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        # How often each module had been called before a function ran for the first time.
        self._before: dict[int, Counter[str]] = {}
        self._after: Counter[str] = Counter()
        # What each returned in its last round.
        self.returned: dict[int, list[torch.Tensor]] = {}

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
                # Exporters write the functions in this order, and number calls in it.
                self._try_out(range(place))
            result = self._call(place, args, kwargs)
            self.returned[place] = _tensors(result)
            return result

        return run

    def finish(self) -> None:
        """Try out the functions that were not called."""
        if self._arguments is not None:
            self._try_out(range(len(self._functions)))
        # The one that ran last need not be the one that called most.
        self._watch.counts |= self._after

    def _try_out(self, places: Iterable[int]) -> None:
        args, kwargs = self._arguments or ((), {})
        for place in places:
            if self._functions[place] is not None and place not in self._before:
                self._watch.try_out(functools.partial(self._call, place, args, kwargs))

    def _call(self, place: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        function: Any = self._functions[place]
        if place in self._before:
            # Once more round the loop: an exporter sees one call of each module in it.
            self._watch.counts = self._before[place].copy()
        else:
            self._before[place] = self._watch.counts.copy()
        with self._watch:
            result = function(*args, **kwargs)
        self._after |= self._watch.counts
        return result


def _tensors(value: object) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
