"""Record one forward pass in eager PyTorch: the inputs and outputs of each module call, and what operators compute."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from modelexport.torch_support import (
    CallWatch,
    ControlFlowWatch,
    FunctionObserver,
    RunningCall,
    named_arguments,
    named_results,
)
from modelexport.torch_support.private import leaves_of, tensors_among
from modelexport.verification.pytorch_run import call_model, reference_run


@dataclasses.dataclass
class RecordedCall:
    """One call of a module, with copies of its tensors; of a call in a loop the last iteration is kept."""

    id: str
    path: str
    in_control_flow: bool
    inputs: dict[str, torch.Tensor]
    outputs: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)


# Called with each output of an operator, the id of the call that ran it, and the operator's other tensors.
OutputCallback = Callable[[torch.Tensor, str, list[torch.Tensor]], None]


def record_forward(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    on_output: OutputCallback | None = None,
    seed: int | None = None,
) -> dict[str, RecordedCall]:
    """Run the model once; returns its calls by id, in the order they began. The root call comes first.

    Args:
        on_output: Called with each output of an operator, before anything can change it in place.
        seed: The seed of torch's random numbers; None leaves the random state as it is.
    """
    recorder = _ForwardRecorder(on_output)
    # Exporters also number the calls in a branch that cannot run here.
    operators = ControlFlowWatch(model, recorder.running, recorder, count_failed_dry_runs=True)
    with reference_run(model), recorder.running.watching(dict(model.named_modules())):
        if seed is not None:
            torch.manual_seed(seed)
        with operators.watching():
            call_model(model, args, kwargs)
    return recorder.calls


class _ForwardRecorder:
    """Copies the inputs and outputs of calls, and passes each output of an operator to the callback."""

    def __init__(self, on_output: OutputCallback | None) -> None:
        self.calls: dict[str, RecordedCall] = {}
        self.running: CallWatch[RecordedCall] = CallWatch(self._enter, self._leave)
        self._on_output = on_output
        # How many control-flow operators are running.
        self._depth = 0
        # True while the recorder itself runs operators, for example to copy a tensor.
        self._paused = False

    def _enter(self, call: RunningCall[RecordedCall], args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordedCall:
        call_id = str(call.id)
        with self._pausing():
            inputs = _copies(named_arguments((), args, kwargs))
        recorded = self.calls[call_id] = RecordedCall(call_id, call.id.path, self._depth > 0, inputs)
        return recorded

    def _leave(
        self, call: RunningCall[RecordedCall], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        call_id = str(call.id)
        with self._pausing():
            self.calls[call_id].outputs = _copies(named_results(result))
            if self._on_output is None:
                return
            # A call that returns one of its inputs ran no operator, but an exporter may write a node for it.
            inputs = {id(leaf) for leaf in leaves_of((args, kwargs))}
            for leaf in tensors_among(result):
                if id(leaf) in inputs:
                    self._on_output(leaf, call_id, [leaf])

    @contextlib.contextmanager
    def _pausing(self) -> Iterator[None]:
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def see_operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        """Pass the outputs of an operator to the callback."""
        result = run()
        if not self._paused:
            self._report(result, tensors_among((args, kwargs)))
        return result

    def see_control_flow(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[FunctionObserver], Any]
    ) -> Any:
        """Pass the outputs of a control-flow operator to the callback; the outputs of its functions count as inputs."""
        functions = _FunctionRecorder(self)
        self._depth += 1
        try:
            result = run(functions)
        finally:
            self._depth -= 1
        self._report(result, tensors_among((args, functions.outputs)))
        return result

    def _report(self, result: Any, inputs: list[torch.Tensor]) -> None:
        running = self.running.innermost
        if self._on_output is None or running is None:
            return
        with self._pausing():
            for leaf in tensors_among(result):
                if leaf.numel():
                    # An in-place operator returns its input, which has new values by now.
                    self._on_output(leaf, str(running.id), [other for other in inputs if other is not leaf])


class _FunctionRecorder:
    """The outputs of the functions of a control-flow operator, in their last iteration."""

    def __init__(self, recorder: _ForwardRecorder) -> None:
        self._recorder = recorder
        self._calls: dict[int, dict[str, RecordedCall]] = {}
        self.outputs: dict[int, list[torch.Tensor]] = {}

    def see_function(
        self, place: int, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any], *, dry: bool
    ) -> Any:
        """Record the outputs of a function."""
        if place not in self._calls:
            self._calls[place] = dict(self._recorder.calls)
        result = run()
        if not dry:
            self.outputs[place] = tensors_among(result)
        return result

    def discard(self, place: int) -> None:
        """Forget a function whose dry run failed, and the calls in it."""
        self._recorder.calls = self._calls[place]


def _copies(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    # Copied immediately: later operators may change the tensor in place.
    return {name: tensor.detach().clone() for name, tensor in tensors}
