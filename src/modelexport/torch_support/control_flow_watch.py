"""Observe the operators of a forward pass, including those in the functions of control-flow operators.

A function that the operator does not call runs as a dry run, without side effects: exporters write both branches of a
`cond`.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from modelexport.errors import ModelExportError, UnsupportedLibraryError
from modelexport.torch_support import private
from modelexport.torch_support.call_watch import CallWatch
from modelexport.torch_support.state_guard import mha_fast_path_disabled, preserved_state


class SideEffectError(ModelExportError):
    """A dry run would have changed a tensor that existed before it."""


class WriteGuard:
    """Distinguishes tensors created in a dry run from those that existed before, which it must not write to."""

    def __init__(self) -> None:
        self._created: set[int] = set()

    def check(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check an operator before it runs.

        Raises:
            SideEffectError: It writes to a tensor that existed before the dry run.
        """
        if not _memory(private.written_arguments(func, args, kwargs)) <= self._created:
            raise SideEffectError(f"{func} writes to a tensor that existed before the dry run")

    def record(self, outputs: object, inputs: object) -> None:
        """Record the outputs of an operator: memory that is not among its inputs is new."""
        self._created |= _memory(outputs) - _memory(inputs)


def run_without_effects(model: torch.nn.Module, action: Callable[[], object]) -> bool:
    """Run an action, and restore the model's attributes and the random state.

    Returns:
        Whether it ended without an error, and without a change to an attribute of a module.
    """
    with preserved_state(model) as state:
        try:
            action()
        except UnsupportedLibraryError:
            raise
        except Exception:  # noqa: BLE001  a branch that is not taken may fail in any way
            return False
    return not state.changed


def _memory(value: object) -> set[int]:
    ids = ((tensor, private.storage_id(tensor)) for tensor in private.tensors_among(value))
    return {id(tensor) if storage is None else storage for tensor, storage in ids}


class OperatorObserver(Protocol):
    """Receives the operators that run."""

    def see_operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        """Call `run`, which runs the operator, and return what it returns."""

    def see_control_flow(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[FunctionObserver], Any]
    ) -> Any:
        """Call `run` with an observer of the operator's functions, and return what it returns."""


class FunctionObserver(Protocol):
    """Receives the functions of one control-flow operator, identified by their position in its arguments."""

    def see_function(
        self, position: int, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any], /, *, dry: bool
    ) -> Any:
        """Call `run`, which calls the function, and return its result; for a loop once per iteration.

        `dry` says that the operator itself does not call the function.
        """

    def discard(self, position: int, /) -> None:
        """Discard the function: its dry run failed."""


class ControlFlowWatch:
    """Passes every operator that runs during a module call to an observer.

    Args:
        model: The model, whose state is restored after a dry run.
        calls: The running calls.
        observer: Receives the operators.
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
        self._guard: WriteGuard | None = None
        self._mode = private.dispatch_mode(self._dispatch)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Observe operators within the context; composite kernels are decomposed."""
        with contextlib.ExitStack() as stack:
            # Otherwise torch compiles control flow, and the operators in its functions cannot be observed.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(mha_fast_path_disabled())
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
        if self._guard is None:
            return func(*args, **kwargs)
        self._guard.check(func, args, kwargs)
        result = func(*args, **kwargs)
        self._guard.record(result, (args, kwargs))
        return result

    def _run_functions(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], observer: FunctionObserver
    ) -> Any:
        functions = _Functions(self, args, observer)
        result = func(*(functions.watched(position, value) for position, value in enumerate(args)), **kwargs)
        functions.finish()
        return result

    @contextlib.contextmanager
    def inside_function(self) -> Iterator[None]:
        """Observe operators inside a function too: torch exits the dispatch mode there."""
        with self._mode:
            yield

    def dry_run(self, action: Callable[[], object]) -> bool:
        """Run a function that the model does not run itself; returns whether it ended without changing the model."""
        counts, guard = self.calls.counts.copy(), self._guard
        self._guard = WriteGuard()
        done = False
        try:
            with self.calls.set_aside():
                done = run_without_effects(self._model, action)
        finally:
            self._guard = guard
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

    def watched(self, position: int, value: Any) -> Any:
        """The argument to pass at this position: an observed function, anything else unchanged."""
        if self._functions[position] is None:
            return value

        def run(*args: Any, **kwargs: Any) -> Any:
            if any(private.is_functorch_wrapped(tensor) for tensor in private.tensors_among((args, kwargs))):
                # torch infers shapes: there are no values.
                return value(*args, **kwargs)
            if self._arguments is None:
                self._arguments = args, kwargs
                # Exporters trace the functions in this order and number the calls accordingly.
                self._dry_run(range(position))
            return self._call(position, args, kwargs, dry=False)

        return run

    def finish(self) -> None:
        """Dry-run the functions that were not called."""
        if self._arguments is not None:
            self._dry_run(range(len(self._functions)))
        # The function that ran last may not be the one with the most calls.
        self._watch.calls.counts |= self._after

    def _dry_run(self, positions: Iterable[int]) -> None:
        args, kwargs = self._arguments or ((), {})
        for position in positions:
            if self._functions[position] is None or position in self._before:
                continue
            after = self._after.copy()
            if not self._watch.dry_run(functools.partial(self._call, position, args, kwargs, dry=True)):
                self._after = after
                self._observer.discard(position)

    def _call(self, position: int, args: tuple[Any, ...], kwargs: dict[str, Any], *, dry: bool) -> Any:
        calls, function = self._watch.calls, self._functions[position]
        assert function is not None, "only functions are called"
        if position in self._before:
            # Another iteration of the loop: an exporter traces one call of each module in it.
            calls.counts = self._before[position].copy()
        else:
            self._before[position] = calls.counts.copy()

        def run() -> Any:
            with self._watch.inside_function():
                return function(*args, **kwargs)

        result = self._observer.see_function(position, args, kwargs, run, dry=dry)
        self._after |= calls.counts
        return result


@contextlib.contextmanager
def control_flow_depth() -> Iterator[Callable[[], int]]:
    """Within the context control-flow operators run eagerly; yields a function that returns how many are running."""
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
