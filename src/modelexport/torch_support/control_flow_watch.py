"""Watch the operators of a forward pass, and what the functions do that control-flow operators are given.

A function that the operator does not call is called as well, as a dry run: exporters write both branches of a `cond`.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from modelexport.torch_support import private
from modelexport.torch_support.call_watch import CallWatch
from modelexport.torch_support.dry_run import Trial, try_out
from modelexport.torch_support.state_guard import fused_layers_off


class OperatorObserver(Protocol):
    """What is done with the operators that are seen."""

    def see_operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        """Call `run`, which runs the operator, and return what it returns."""

    def see_control_flow(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[FunctionObserver], Any]
    ) -> Any:
        """Call `run` with an observer of the operator's functions, and return what it returns."""


class FunctionObserver(Protocol):
    """What is done with the functions of one control-flow operator, which are known by their place in its arguments."""

    def see_function(
        self, place: int, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any], *, dry: bool
    ) -> Any:
        """Call `run`, which calls the function, and return what it returns; for a loop once in each round.

        `dry` is whether the operator itself does not call the function.
        """

    def discard(self, place: int) -> None:
        """The dry run of the function failed: what was seen of it does not count."""


class ControlFlowWatch:
    """Shows an observer every operator that runs while a module call does.

    Args:
        model: The model whose state a dry run leaves as it was.
        calls: The calls that are running.
        observer: What is done with the operators.
        count_failed_dry_runs: Whether calls in a dry run that fails count for the index of later calls.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        calls: CallWatch[Any],
        observer: OperatorObserver,
        *,
        count_failed_dry_runs: bool = False,
    ) -> None:
        self.calls = calls
        self._model = model
        self._observer = observer
        self._count_failed = count_failed_dry_runs
        self._trial: Trial | None = None
        self._mode = private.dispatch_mode(self._dispatch)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """See the operators within the context, those that torch could run as one kernel in their parts."""
        with contextlib.ExitStack() as stack:
            # Otherwise control flow is compiled to be run, and nobody sees what its functions do.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(fused_layers_off())
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            stack.enter_context(self._mode)
            yield

    def _dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.calls.innermost is None:
            return func(*args, **kwargs)
        if private.is_higher_order_operator(func):
            return self._observer.see_control_flow(
                args, kwargs, functools.partial(self._run_functions, func, args, kwargs)
            )
        return self._observer.see_operator(func, args, kwargs, functools.partial(self._run, func, args, kwargs))

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._trial is None:
            return func(*args, **kwargs)
        self._trial.check(func, args, kwargs)
        result = func(*args, **kwargs)
        self._trial.note(result, (args, kwargs))
        return result

    def _run_functions(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], observer: FunctionObserver
    ) -> Any:
        functions = _Functions(self, args, observer)
        result = func(*(functions.watched(place, value) for place, value in enumerate(args)), **kwargs)
        functions.finish()
        return result

    @contextlib.contextmanager
    def inside_function(self) -> Iterator[None]:
        """Operators are seen inside a function too, where torch has left the mode."""
        with self._mode:
            yield

    def dry_run(self, action: Callable[[], object]) -> bool:
        """Run what the model does not run itself; whether it came to an end without a change to the model."""
        counts, trial = self.calls.counts.copy(), self._trial
        self._trial = Trial()
        done = False
        try:
            with self.calls.set_aside():
                done = try_out(self._model, action)
        finally:
            self._trial = trial
            if not done and not self._count_failed:
                self.calls.counts = counts
        return done


class _Functions:
    """The functions of one operator: branches, or the condition and the body of a loop."""

    def __init__(self, watch: ControlFlowWatch, given: Iterable[Any], observer: FunctionObserver) -> None:
        self._watch = watch
        self._observer = observer
        self._functions = [v if callable(v) and not isinstance(v, torch.Tensor) else None for v in given]
        self._arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        # How often each module had been called before a function ran for the first time, and after it ran.
        self._before: dict[int, Counter[str]] = {}
        self._after: Counter[str] = Counter()

    def watched(self, place: int, value: Any) -> Any:
        """What the operator is to be given in that place: a watched function, anything else as it is."""
        if self._functions[place] is None:
            return value

        def run(*args: Any, **kwargs: Any) -> Any:
            if any(private.is_functorch_wrapped(tensor) for tensor in private.tensors_among((args, kwargs))):
                # torch only looks at the function's shapes: there are no values to see.
                return value(*args, **kwargs)
            if self._arguments is None:
                self._arguments = args, kwargs
                # Exporters trace the functions in this order, and number calls in it.
                self._dry_run(range(place))
            return self._call(place, args, kwargs, dry=False)

        return run

    def finish(self) -> None:
        """Dry-run the functions that were not called."""
        if self._arguments is not None:
            self._dry_run(range(len(self._functions)))
        # The function that ran last need not be the one that made most calls.
        self._watch.calls.counts |= self._after

    def _dry_run(self, places: Iterable[int]) -> None:
        args, kwargs = self._arguments or ((), {})
        for place in places:
            if self._functions[place] is None or place in self._before:
                continue
            after = self._after.copy()
            if not self._watch.dry_run(functools.partial(self._call, place, args, kwargs, dry=True)):
                self._after = after
                self._observer.discard(place)

    def _call(self, place: int, args: tuple[Any, ...], kwargs: dict[str, Any], *, dry: bool) -> Any:
        calls, function = self._watch.calls, self._functions[place]
        assert function is not None, "only functions are called"
        if place in self._before:
            # Once more round the loop: an exporter sees one call of each module in it.
            calls.counts = self._before[place].copy()
        else:
            self._before[place] = calls.counts.copy()

        def run() -> Any:
            with self._watch.inside_function():
                return function(*args, **kwargs)

        result = self._observer.see_function(place, args, kwargs, run, dry=dry)
        self._after |= calls.counts
        return result


@contextlib.contextmanager
def control_flow_depth() -> Iterator[Callable[[], int]]:
    """Within the context, control-flow operators run as written; gives how many of them are running now."""
    depth = 0

    def count(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        depth += 1
        try:
            return original(*args, **kwargs)
        finally:
            depth -= 1

    with torch.compiler.set_stance("force_eager"), private.higher_order_calls_through(count):
        yield lambda: depth
