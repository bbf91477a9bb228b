"""What happens where a release removed or changed a private part: our error, or a file that says what was lost.

Each part is broken as this package sees it: torch itself goes on as before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.part_uses import EXPORTS, OTHERS, SLOW, Outcome, tiny, use_by_value, use_eager_control_flow
from tests.support.untouched import snapshot

from modelexport import torch_support
from modelexport.errors import ModelExportError
from modelexport.torch_support.private_part import Part
from modelexport.torch_support.transformers_private import has_exporters

pytestmark = [pytest.mark.sanity, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("broken_parts")]


def all_parts() -> dict[str, Part]:
    """Every part that a module of `torch_support` defines."""
    found: dict[str, Part] = {}
    for info in pkgutil.iter_modules(torch_support.__path__, f"{torch_support.__name__}."):
        values = vars(importlib.import_module(info.name)).values()
        members = [m.value for v in values if isinstance(v, type) and issubclass(v, enum.Enum) for m in v]
        found.update({part.path: part for part in (*values, *members) if isinstance(part, Part)})
    return found


PARTS = all_parts()


# --- breaking ---------------------------------------------------------------------------------------------------


class Break(enum.Enum):
    REMOVED = "removed"
    RAISES = "raises"
    TAKES_OTHER_ARGUMENTS = "takes other arguments"
    RETURNS_NONSENSE = "returns nonsense"


# Functions of the library, as far as can be told from a traceback.
_LIBRARY: dict[str, Any] = {}
exec(
    "def raises(*args, **kwargs):\n    raise RuntimeError('changed')\n"
    "def takes_other_arguments(*, renamed):\n    raise AssertionError('not called')\n"
    "def returns_nonsense(*args, **kwargs):\n    return object()\n",
    _LIBRARY,
)


def changed(part: Part, original: object, how: Break) -> Any:
    if how is Break.RETURNS_NONSENSE and isinstance(original, type):
        return type("Other", (), {})
    _LIBRARY["__name__"] = part.library
    return _LIBRARY[how.name.lower()]


@contextlib.contextmanager
def broken(part: Part, how: Break) -> Iterator[None]:
    """Break one part, in each of the ways in which it can be used."""
    originals = {name: vars(Part)[name] for name in ("find", "of", "optional", "item", "called_through")}

    def find(self: Part) -> Any:
        if self is not part:
            return originals["find"](self)
        if how is Break.REMOVED:
            raise self.missing()
        return changed(self, originals["find"](self), how)

    def of(self: Part, instance: object) -> Any:
        if self is not part:
            return originals["of"](self, instance)
        if how is Break.REMOVED:
            raise self.missing()
        return changed(self, None, how)

    def item(self: Part, mapping: Any) -> Any:
        if self is not part:
            return originals["item"](self, mapping)
        return None if how is Break.REMOVED else changed(self, None, how)

    def optional(self: Part, instance: object) -> Any:
        if self is not part:
            return originals["optional"](self, instance)
        return None if how is Break.REMOVED else changed(self, None, how)

    def called_through(self: Part, around: Callable[..., Any], **expected: Any) -> Any:
        if self is not part:
            return originals["called_through"](self, around, **expected)
        if how is Break.REMOVED:
            raise self.missing()
        if how is Break.RETURNS_NONSENSE:
            return never_called(self, **expected)

        def strange(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return around(lambda *_, **__: run(*args, **kwargs), object(), renamed=object())

        if expected.get("first") is None:
            return entered_with(originals["called_through"](self, strange), originals["find"])
        return called_strangely(self, originals["called_through"](self, around, **expected), originals["find"])

    vars(part).pop("fixed", None)
    try:
        with patched(find=find, of=of, item=item, optional=optional, called_through=called_through):
            yield
    finally:
        vars(part).pop("fixed", None)


@contextlib.contextmanager
def called_strangely(part: Part, context: Any, find: Any) -> Iterator[None]:
    owner, _, name = part.path.rpartition(".")
    with entered_with(context, find):
        holder = find(Part(owner, ""))
        replacement = getattr(holder, name)
        setattr(holder, name, lambda *_, **__: replacement(object()))
        yield


@contextlib.contextmanager
def never_called(part: Part, *, required: bool = False, **_: Any) -> Iterator[None]:
    yield
    if required:
        raise part.changed("torch does not call it")


@contextlib.contextmanager
def entered_with(context: Any, find: Any) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        with patched(find=find):
            stack.enter_context(context)
        yield


@contextlib.contextmanager
def patched(**methods: Any) -> Iterator[None]:
    before = {name: vars(Part)[name] for name in methods}
    for name, method in methods.items():
        setattr(Part, name, method)
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(Part, name, method)


@contextlib.contextmanager
def recorded_parts() -> Iterator[dict[str, set[str]]]:
    """The parts that are used within the context, with the methods of `Part`."""
    seen: dict[str, set[str]] = {}
    methods = {name: vars(Part)[name] for name in ("find", "of", "optional", "item", "called_through")}

    def recording(name: str, original: Any) -> Any:
        def method(self: Part, *args: Any, **kwargs: Any) -> Any:
            seen.setdefault(self.path, set()).add(name)
            return original(self, *args, **kwargs)

        return method

    for part in PARTS.values():
        vars(part).pop("fixed", None)
    with patched(**{name: recording(name, method) for name, method in methods.items()}):
        yield seen


# --- the tests --------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Uses:
    """Each use without a broken part: its outcome and its parts; run once."""

    folder: Path
    outcomes: dict[str, Outcome] = dataclasses.field(default_factory=dict)
    parts: dict[str, dict[str, set[str]]] = dataclasses.field(default_factory=dict)

    def run(self, use: Callable[[Path], Outcome]) -> None:
        if use.__name__ not in self.outcomes:
            with recorded_parts() as seen:
                self.outcomes[use.__name__] = use(self.folder)
            self.parts[use.__name__] = seen

    def of(self, part: Part) -> list[Callable[[Path], Outcome]]:
        """The uses to break: one cheap export, each other cheap use, and an export with `fx` where there is none."""
        for use in (*EXPORTS, *OTHERS, use_by_value):
            self.run(use)
        found = [use for use in EXPORTS if part.path in self.parts[use.__name__]][:1]
        found += [use for use in OTHERS if part.path in self.parts[use.__name__]]
        if use_eager_control_flow in found and part.path in self.parts[use_by_value.__name__]:
            found.append(use_by_value)
        for use in () if found else SLOW:
            self.run(use)
            if part.path in self.parts[use.__name__]:
                return [use]
        return found


@pytest.fixture(scope="module")
def uses(tmp_path_factory: pytest.TempPathFactory) -> Uses:
    pytest.importorskip("transformers")
    if not has_exporters():
        pytest.skip("this release of transformers has no exporters")
    return Uses(tmp_path_factory.mktemp("broken"))


@pytest.mark.parametrize("path", PARTS)
def test_broken_part_gives_our_error_or_a_file_that_says_what_was_lost(path: str, uses: Uses) -> None:
    part = PARTS[path]
    found = uses.of(part)
    assert found, "nothing here uses this part: add a use of it"
    for use in found:
        for how in ways_to_break(uses.parts[use.__name__][path]):
            check_broken(part, how, use, uses)


def ways_to_break(methods: set[str]) -> Iterator[Break]:
    """The breaks that differ for a part that is used by these methods of `Part`."""
    yield Break.REMOVED
    yield Break.RETURNS_NONSENSE
    if not methods.isdisjoint(("find", "called_through")):
        yield Break.TAKES_OTHER_ARGUMENTS
    if "called_through" not in methods and "find" in methods:
        # Where a function raises that torch calls itself, torch does not export.
        yield Break.RAISES


def check_broken(part: Part, how: Break, use: Callable[[Path], Outcome], uses: Uses) -> None:
    originals, before = functions_of_torch(), snapshot(tiny())
    which = f"{use.__name__}, {part.path} {how.value}"
    outcome: Outcome | None = None
    with broken(part, how):
        error = ""
        try:
            outcome = use(uses.folder)
        except ModelExportError as ours:
            error = str(ours)
    # Not a fault of the model or of the exporter. What a part raises that runs the model may be the model's.
    assert not error or part.path in error or (part.runs_model and how is Break.RAISES), f"{which}: {error}"
    after = snapshot(tiny())
    assert {key for key in after if after[key] != before.get(key)} == set(), which
    assert functions_of_torch() == originals, which
    if outcome is not None:
        judge(outcome, uses.outcomes[use.__name__], which)


def functions_of_torch() -> dict[str, Any]:
    """Each part that can be looked up: no patch may stay."""
    found: dict[str, Any] = {}
    for path, part in PARTS.items():
        with contextlib.suppress(ModelExportError):
            found[path] = part.find()
    return found


def judge(outcome: Outcome, intact: Outcome, which: str) -> None:
    assert set(outcome.owners) == set(intact.owners), f"{which}: another graph"
    wrong = {
        node: (owner, intact.owners[node])
        for node, (owner, kind) in outcome.owners.items()
        if kind == "exact" and owner != intact.owners[node][0]
    }
    assert wrong == {}, f"{which}: not exact"
    if (outcome.owners, outcome.boundaries) != (intact.owners, intact.boundaries):
        assert set(outcome.notes) > set(intact.notes), f"{which}: nothing says what was lost"
