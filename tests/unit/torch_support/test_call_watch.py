"""The one watcher of module calls: which call runs when, whatever calls do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests.support.untouched import changes, model_state, torch_state
from torch import nn

from modelexport.capture.fx.trace_recorder import TraceRecorder
from modelexport.capture.module_tree import read_module_tree
from modelexport.torch_support.call_watch import CallWatch, RunningCall


class Log:
    """Writes down what a watch reports, with the call that runs when `note` is called inside a forward."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.calls: CallWatch[str] = CallWatch(self._enter, self._leave)

    def _enter(self, call: RunningCall[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        self.lines.append(f"{_name(call.parent)} calls {_name(call)}({len(args)}, {', '.join(kwargs)})")
        return str(call.id)

    def _leave(self, call: RunningCall[str], args: Any, kwargs: Any, result: Any) -> None:
        assert call.record == str(call.id)
        self.lines.append(f"{_name(call)} returns {type(result).__name__}")

    def note(self, what: str) -> None:
        self.lines.append(f"{what} in {_name(self.calls.innermost)}")

    def run(self, model: nn.Module, *args: Any, **kwargs: Any) -> list[str]:
        with self.calls.watching(dict(model.named_modules())):
            model(*args, **kwargs)
        return self.lines


def _name(call: RunningCall[str] | None) -> str:
    return "nobody" if call is None else str(call.id) or "root"


class Acting(nn.Module):
    """Does what it is told, with children that do as well."""

    def __init__(self, act: Callable[..., Any], **children: nn.Module) -> None:
        super().__init__()
        self.act = act
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.act(self, *args, **kwargs)


class OwnCall(Acting):
    """Its class calls forward without torch's hooks."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)


@pytest.mark.parametrize("child", [Acting, OwnCall])
def test_calls_of_another_thread_are_not_observed(child: type[Acting]) -> None:
    def call_in_a_thread(module: nn.Module, x: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(module.a, x).result()
        return module.a(x)

    model = Acting(call_in_a_thread, a=child(lambda module, x: x))
    assert Log().run(model, torch.ones(1)) == [
        "nobody calls root(1, )",
        "root calls a(1, )",
        "a returns Tensor",
        "root returns Tensor",
    ]


def fail(module: nn.Module, x: Any) -> Any:
    raise ValueError("no")


def pass_on(module: nn.Module, x: Any) -> Any:
    return x


def test_call_whose_exception_is_caught_runs_no_longer_and_has_no_result() -> None:
    log = Log()

    def catch(module: Any, x: Any) -> Any:
        try:
            module.outer(x)
        except ValueError:
            log.note("operator")
        return module.other(x)

    inner = Acting(fail)
    model = Acting(catch, outer=Acting(lambda module, x: module.inner(x), inner=inner), other=Acting(pass_on))
    assert log.run(model, 1) == [
        "nobody calls root(1, )",
        "root calls outer(1, )",
        "outer calls outer.inner(1, )",
        "operator in root",
        "root calls other(1, )",
        "other returns int",
        "root returns int",
    ]


def test_module_that_calls_itself_and_catches_what_that_raised_returns_its_own_result() -> None:
    log = Log()

    def again(module: Any, x: int) -> int:
        if x == 2:
            raise ValueError("deep enough")
        try:
            module(x + 1)
        except ValueError:
            log.note("operator")
        return x

    assert log.run(Acting(lambda module, x: module.self_calling(x), self_calling=Acting(again)), 0) == [
        "nobody calls root(1, )",
        "root calls self_calling(1, )",
        "self_calling calls self_calling@1(1, )",
        "self_calling@1 calls self_calling@2(1, )",
        "operator in self_calling@1",
        "self_calling@1 returns int",
        "self_calling returns int",
        "root returns int",
    ]


def test_module_with_two_names_is_called_by_its_first() -> None:
    child = Acting(pass_on)
    model = Acting(lambda module, x: module.b(module.a(x=x)), a=child, b=child)
    lines = Log().run(model, x=1)
    assert lines[1] == "root calls a(0, x)"
    assert lines[3] == "root calls a@1(1, )"


class Bare(Acting):
    """A class with a `__call__` of its own that runs none of torch's hooks."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)


class Inheriting(Bare):
    """One that inherits such a `__call__`."""


class Delegating(Bare):
    """One whose own goes to that of its base class, by a way that names say nothing of."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return vars(nn.Module)["_call" + "_impl"](self, *args, **kwargs)


@pytest.mark.parametrize("kind", [Acting, Bare, Inheriting, Delegating])
def test_call_by_a_class_s_own_call_is_seen_once(kind: type[Acting]) -> None:
    log = Log()
    child = kind(lambda module, x: log.note("operator") or x)
    model = kind(lambda module, x: module.child(x) and module.child(x), child=child)
    before = vars(kind).get("__call__")
    assert log.run(model, 1) == [
        "nobody calls root(1, )",
        "root calls child(1, )",
        "operator in child",
        "child returns int",
        "root calls child@1(1, )",
        "operator in child@1",
        "child@1 returns int",
        "root returns int",
    ]
    assert vars(kind).get("__call__") is before


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_scripted_module_is_not_watched_and_does_no_harm() -> None:
    scripted = torch.jit.script(nn.ReLU())
    lines = Log().run(Acting(lambda module, x: module.relu(x), relu=scripted), torch.ones(2))
    assert lines == ["nobody calls root(1, )", "root returns Tensor"]


def test_user_s_own_hooks_are_part_of_the_call() -> None:
    log = Log()
    child = Acting(pass_on)
    child.register_forward_pre_hook(lambda *_: log.note("hook before"))
    child.register_forward_hook(lambda *_: log.note("hook behind"))
    lines = log.run(Acting(lambda module, x: module.child(x), child=child), 1)
    assert lines[1:5] == ["root calls child(1, )", "hook before in child", "hook behind in child", "child returns int"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_no_hook_is_left_behind_by_a_forward_that_fails(error: type[BaseException]) -> None:
    def end(module: nn.Module, x: Any) -> Any:
        raise error

    model = Acting(lambda module, x: module.child(x), child=Bare(end))
    before = {**model_state(model), **torch_state()}
    own = vars(Bare)["__call__"]
    log = Log()
    with pytest.raises(error):
        log.run(model, 1)
    assert changes(before, {**model_state(model), **torch_state()}) == []
    assert vars(Bare)["__call__"] is own


def test_pass_after_one_that_failed_begins_anew() -> None:
    log = Log()
    failing = iter([True, False])

    def act(module: Any, x: Any) -> Any:
        return fail(module, x) if next(failing) else x

    model = Acting(lambda module, x: module.child(x), child=Acting(act))
    with log.calls.watching(dict(model.named_modules())):
        with pytest.raises(ValueError, match="no"):
            model(1)
        log.note("operator")
        model(1)
    first, last = log.lines[:3], log.lines[3:]
    assert first == ["nobody calls root(1, )", "root calls child(1, )", "operator in nobody"]
    assert last == ["nobody calls root(1, )", "root calls child(1, )", "child returns int", "root returns int"]


def test_recorder_keeps_the_pass_that_came_to_an_end_after_one_that_failed() -> None:
    failing = iter([True, False])

    def act(module: Any, x: Any) -> Any:
        return fail(module, x) if next(failing) else x

    model = Acting(lambda module, x: module.child(x), child=Acting(act))
    recorder = TraceRecorder(model, read_module_tree(model))
    with recorder.watching():
        with pytest.raises(ValueError, match="no"):
            model(torch.ones(2))
        model(torch.ones(2))
    assert recorder.last_pass is not None
    assert [str(call) for call in recorder.last_pass.calls] == ["", "child"]


@pytest.mark.parametrize("wrap", [False, True], ids=["the error itself", "an error that came of it"])
def test_error_leads_to_the_innermost_call_that_it_came_from(wrap: bool) -> None:
    log = Log()

    def caught_before(module: Any, x: Any) -> Any:
        with contextlib.suppress(ValueError):
            module.harmless(x)
        try:
            return module.child(x)
        except ValueError as error:
            if wrap:
                raise TypeError("in other words") from error
            raise

    model = Acting(caught_before, harmless=Acting(fail), child=Acting(fail))
    with pytest.raises(TypeError if wrap else ValueError) as caught:
        log.run(model, 1)
    found = log.calls.raised_in(caught.value)
    assert found is not None
    assert str(found.id) == "child"


def test_error_of_a_module_itself_is_not_blamed_on_a_child_whose_error_it_caught() -> None:
    log = Log()

    def act(module: Any, x: Any) -> Any:
        try:
            module.harmless(x)
        except ValueError:
            x = x + 1
        return x["nothing"]

    with pytest.raises(TypeError) as caught:
        log.run(Acting(act, harmless=Acting(fail)), 1)
    found = log.calls.raised_in(caught.value)
    assert found is not None
    assert str(found.id) == ""


def test_arguments_of_calls_that_ended_are_not_held() -> None:
    ended: list[str] = []

    class Held:
        def __del__(self) -> None:
            ended.append("gone")

    log = Log()
    model = Acting(lambda module, x: module.child(Held()) and len(ended), child=Bare(lambda module, x: 1))
    with log.calls.watching(dict(model.named_modules())):
        assert model(1) == 1
