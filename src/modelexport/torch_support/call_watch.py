"""Observe module calls during a forward pass: forward hooks maintain one stack of running calls.

A call is all that `module(...)` does, the user's own hooks included. A call that raises an exception which its caller
catches is removed from the stack as well, although torch runs no hook for it: each entry has the frame that runs the
call, and a frame that no longer executes has ended.

Hooks belong to the thread that registers them: other threads may run the model, or another one of its classes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, Generic, TypeVar

import torch

from modelexport.hierarchy import ROOT_PATH, CallId

Record = TypeVar("Record")

# A class's own `__call__` that uses one of these names forwards the call to torch, which runs the hooks.
_FORWARDING = frozenset({"__call__", "_call_impl", "_wrapped_call_impl"})


@dataclasses.dataclass(eq=False, slots=True)
class RunningCall(Generic[Record]):
    """A module call that has begun.

    Attributes:
        id: The module's path, and the number of earlier calls of it.
        module: The module.
        parent: The calling module call; None where no observed call made it.
        frame: The frame that runs it; None once it has returned, so that nothing keeps its local variables.
        record: The result of `enter` for it.
        forwarded: Whether torch's hooks may report the same call again: a class's own `__call__` reported it first.
    """

    id: CallId
    module: torch.nn.Module
    parent: RunningCall[Record] | None
    frame: FrameType | None
    record: Record | None = None
    forwarded: bool = False

    def is_running(self) -> bool:
        """Whether the call has neither returned nor raised."""
        if self.frame is None:
            return False
        try:
            # Documented behaviour: this raises for an executing frame, and clears the locals of one that has ended.
            self.frame.clear()
        except RuntimeError:
            return True
        return False


class CallWatch(Generic[Record]):
    """The running module calls.

    Args:
        enter: Called when a call begins, with its arguments; the result becomes the call's record. `innermost` is still
            the caller.
        leave: Called when a call returns, with its arguments and its result; not for a call that raises. `innermost` is
            the caller again.

    Attributes:
        counts: The number of calls of each module so far, by path. An outermost call of the root resets it.
    """

    def __init__(
        self,
        enter: Callable[[RunningCall[Record], tuple[Any, ...], dict[str, Any]], Record],
        leave: Callable[[RunningCall[Record], tuple[Any, ...], dict[str, Any], Any], None],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._on_enter = enter
        self._on_leave = leave
        self._stack: list[RunningCall[Record]] = []
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    @property
    def innermost(self) -> RunningCall[Record] | None:
        """The call that runs now; removes calls that have raised."""
        while self._stack and not self._stack[-1].is_running():
            self._stack.pop()
        return self._stack[-1] if self._stack else None

    def raised_in(self, error: BaseException) -> RunningCall[Record] | None:
        """The innermost call that `error`, or an error that caused it, was raised in.

        Use it before any other call begins: that removes calls that have ended.
        """
        frames = {id(frame) for frame in _frames(error)}
        return next((call for call in reversed(self._stack) if id(call.frame) in frames), None)

    @contextlib.contextmanager
    def watching(self, modules: Mapping[str, torch.nn.Module]) -> Iterator[None]:
        """Observe the calls of these modules, by path, within the context, and remove all hooks after it.

        Scripted modules are not observed: they do not support hooks.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self._remove_hooks)
            for path, module in modules.items():
                self.add(path, module)
            paths = {id(module): path for path, module in modules.items()}
            stack.enter_context(own_calls_through(modules.values(), self._own_call(paths)))
            yield

    def add(self, path: str, module: torch.nn.Module) -> None:
        """Observe another module until the end of `watching`."""
        if isinstance(module, torch.jit.ScriptModule):
            return
        before, after = self._hooks(path)
        # First for the arguments and last for the result: the user's hooks are part of the call.
        self._handles.append(module.register_forward_pre_hook(in_this_thread(before), with_kwargs=True, prepend=True))
        self._handles.append(module.register_forward_hook(in_this_thread(after), with_kwargs=True))

    def enter(
        self, path: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType
    ) -> RunningCall[Record]:
        """Begin a call that `frame` runs."""
        parent = self.innermost
        if parent is None and path == ROOT_PATH:
            self.counts.clear()
        call: RunningCall[Record] = RunningCall(CallId(path, self.counts[path]), module, parent, frame)
        self.counts[path] += 1
        call.record = self._on_enter(call, args, kwargs)
        self._stack.append(call)
        return call

    @contextlib.contextmanager
    def set_aside(self) -> Iterator[None]:
        """Restore the stack of running calls after the context."""
        before = list(self._stack)
        try:
            yield
        finally:
            self._stack = before

    def _leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, frame: FrameType) -> None:
        found = next((call for call in reversed(self._stack) if call.frame is frame), None)
        if found is None:
            # A class's own `__call__` reported this call already, or it began before `watching`.
            return
        # Calls above it raised an exception that it caught.
        del self._stack[self._stack.index(found) :]
        found.frame = None
        self._on_leave(found, args, kwargs, result)

    def _hooks(self, path: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def before(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            running = self.innermost
            if running is not None and running.forwarded and running.module is module:
                running.forwarded = False
                return
            self.enter(path, module, args, kwargs, sys._getframe(2))

        def after(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            self._leave(args, kwargs, result, sys._getframe(2))

        return before, after

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _own_call(self, paths: Mapping[int, str]) -> Callable[..., Any]:
        def call(original: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            path = paths.get(id(module))
            if path is None:
                return original(module, *args, **kwargs)
            running = self.innermost
            if running is not None and running.forwarded and running.module is module:
                # A `__call__` that calls that of its base class.
                return original(module, *args, **kwargs)
            # No local variable: a frame that refers to itself keeps its arguments alive until garbage collection.
            self.enter(path, module, args, kwargs, sys._getframe()).forwarded = True
            result = original(module, *args, **kwargs)
            self._leave(args, kwargs, result, sys._getframe())
            return result

        return call


def in_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that runs for module calls of the current thread only."""
    thread = threading.get_ident()

    def own_hook(*args: Any, **kwargs: Any) -> Any:
        # While torch compiles a function of a control-flow operator it traces the hooks too: they do nothing then.
        if torch.compiler.is_dynamo_compiling() or threading.get_ident() != thread:
            return None
        return hook(*args, **kwargs)

    return own_hook


@contextlib.contextmanager
def own_calls_through(modules: Iterable[torch.nn.Module], around: Callable[..., Any]) -> Iterator[None]:
    """Within the context, call modules whose class has a `__call__` without hooks through `around`.

    Its first arguments are the original and the module. This affects all modules of these classes, in this thread.
    """
    classes = {type(module) for module in modules if _has_own_call(module)}
    originals = {cls: inspect.getattr_static(cls, "__call__") for cls in classes}
    inherited = {cls for cls in classes if "__call__" not in vars(cls)}
    try:
        for cls, original in originals.items():
            cls.__call__ = _calling(around, original)  # type: ignore[method-assign]
        yield
    finally:
        for cls, original in originals.items():
            if cls not in inherited:
                cls.__call__ = original  # type: ignore[method-assign]
            elif "__call__" in vars(cls):
                del cls.__call__


def _calling(around: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    thread = threading.get_ident()

    # Not named `forward`: torch records stack frames of that name in its nodes.
    def watched_call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() or threading.get_ident() != thread:
            return original(module, *args, **kwargs)
        return around(original, module, *args, **kwargs)

    return watched_call


def _has_own_call(module: torch.nn.Module) -> bool:
    if isinstance(module, torch.jit.ScriptModule | torch.fx.GraphModule):
        return False
    own = inspect.getattr_static(type(module), "__call__")
    if own is inspect.getattr_static(torch.nn.Module, "__call__"):
        return False
    code = getattr(inspect.unwrap(own), "__code__", None)
    return code is not None and _FORWARDING.isdisjoint(code.co_names)


def _frames(error: BaseException | None) -> Iterable[FrameType]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback = error.__traceback__
        while traceback is not None:
            yield traceback.tb_frame
            traceback = traceback.tb_next
        error = error.__cause__ or error.__context__
