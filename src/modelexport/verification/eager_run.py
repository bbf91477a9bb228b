"""One forward pass of the model in eager PyTorch, watched: what each call was given, returned and computed.

The model is left as it was: hooks, flags, buffers, gradients and the random state.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from modelexport.errors import InputError
from modelexport.hierarchy import ForwardArgument
from modelexport.torch_support import (
    TORCH_LOCK,
    CallWatch,
    ControlFlowWatch,
    FunctionObserver,
    RunningCall,
    buffers_restored,
    evaluation_mode,
    named_arguments,
    named_results,
    preserved_state,
)
from modelexport.torch_support.private import leaves_of, tensors_among


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
    observer = _Observer(witness)
    # The exporter numbers the calls of a branch that cannot be run here as well.
    operators = ControlFlowWatch(model, observer.running, observer, count_failed_dry_runs=True)
    mode = contextlib.nullcontext() if training else evaluation_mode(model)
    with (
        TORCH_LOCK,
        preserved_state(model),
        buffers_restored(model),
        mode,
        observer.running.watching(dict(model.named_modules())),
    ):
        if seed is not None:
            torch.manual_seed(seed)
        try:
            with torch.no_grad(), operators.watching():
                result = model(*args, **kwargs)
        except Exception as error:
            message = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(f"{type(model).__name__} does not run on these inputs: {message}") from error
    return EagerRun(observer.calls, result)


class _Observer:
    """Keeps copies of what calls were given and returned, and shows every operator's result to the witness."""

    def __init__(self, witness: Witness | None) -> None:
        self.calls: dict[str, EagerCall] = {}
        self.running: CallWatch[EagerCall] = CallWatch(self._enter, self._leave)
        self._witness = witness
        self._bodies = 0
        # While a hook copies a tensor: no module computes that.
        self._looking = False

    def _enter(self, call: RunningCall[EagerCall], args: tuple[Any, ...], kwargs: dict[str, Any]) -> EagerCall:
        parent = str(call.parent.id) if call.parent is not None else None
        identity = str(call.id)
        with self._aside():
            given = _copies(named_arguments(_forward_arguments(call.module), args, kwargs))
        made = EagerCall(identity, call.id.path, parent, given, in_body=self._bodies > 0)
        self.calls[identity] = made
        return made

    def _leave(self, call: RunningCall[EagerCall], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        identity = str(call.id)
        with self._aside():
            self.calls[identity].results = _copies(named_results(result))
            if self._witness is None:
                return
            # A call that returns what it was given ran no operator, but an exporter may write one for it.
            given = {id(leaf) for leaf in leaves_of((args, kwargs))}
            for leaf in tensors_among(result):
                if id(leaf) in given:
                    self._witness(leaf, identity, [leaf])

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        self._looking = True
        try:
            yield
        finally:
            self._looking = False

    def see_operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        """Show what an operator made to the witness."""
        result = run()
        if not self._looking:
            self._show(result, tensors_among((args, kwargs)))
        return result

    def see_control_flow(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[FunctionObserver], Any]
    ) -> Any:
        """Show what a control-flow operator made to the witness, with what its functions returned as what it read."""
        bodies = _Bodies(self)
        self._bodies += 1
        try:
            result = run(bodies)
        finally:
            self._bodies -= 1
        self._show(result, tensors_among((args, bodies.returned)))
        return result

    def _show(self, result: Any, read: list[torch.Tensor]) -> None:
        running = self.running.innermost
        if self._witness is None or running is None:
            return
        with self._aside():
            for leaf in tensors_among(result):
                if leaf.numel():
                    # An operator that works in place returns what it read, with other values by now.
                    self._witness(leaf, str(running.id), [other for other in read if other is not leaf])


class _Bodies:
    """What the functions that a control-flow operator called returned in their last round."""

    def __init__(self, observer: _Observer) -> None:
        self._observer = observer
        self._calls: dict[int, dict[str, EagerCall]] = {}
        self.returned: dict[int, list[torch.Tensor]] = {}

    def see_function(
        self, place: int, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any], *, dry: bool
    ) -> Any:
        """Keep what a function returns."""
        if place not in self._calls:
            self._calls[place] = dict(self._observer.calls)
        result = run()
        if not dry:
            self.returned[place] = tensors_among(result)
        return result

    def discard(self, place: int) -> None:
        """Forget a function whose dry run failed, and the calls in it."""
        self._observer.calls = self._calls[place]


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
