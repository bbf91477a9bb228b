"""From what a user names (a path, a call, an alias, a tag, a pattern) to one module call."""

from __future__ import annotations

import difflib
import re

from modelexport.analysis.query import select_calls
from modelexport.errors import ExtractionError, SelectorError
from modelexport.hierarchy import CallId, CallRecord, HierarchyDocument

_SHOWN = 5
# What only a pattern has: then it is the pattern that is wrong, and not a name.
_PATTERN = re.compile(r"[\s*?\[\]():]")


def find_call(document: HierarchyDocument, target: str) -> CallRecord:
    """The one call that `target` names.

    Raises:
        ExtractionError: There is none, or there are several.
    """
    calls = {call.id: call for call in document.calls}
    if target in calls:
        return calls[target]
    tree = document.tree()
    given = CallId.parse(target)
    canonical = tree.canonical(given.path)
    if canonical is not None:
        call = calls.get(str(CallId(canonical, given.index)))
        if call is not None:
            return call
        times = sum(call.path == canonical for call in document.calls)
        said = (
            f"it was called {times} times, the last is {str(CallId(canonical, times - 1))!r}"
            if times
            else "it was never called"
        )
        raise ExtractionError(target, "never_called", said)
    visible = {module.path for module in document.modules if module.visible}
    tagged = [call for call in document.calls if call.tag == target and call.path in visible]
    if len(tagged) == 1:
        return tagged[0]
    idle = next((module for module in document.modules if module.tag == target and module.visible), None)
    if idle is not None and not tagged:
        raise ExtractionError(target, "never_called", f"module {idle.path!r} was never called")
    found = tagged or _picked(document, target)
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(repr(call.id) for call in found[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
        raise ExtractionError(target, "several", f"it picks {len(found)} calls: {names}. Name one of them")
    raise ExtractionError(target, "unknown", f"there is no such module, call, tag or class{_close(document, target)}")


def _picked(document: HierarchyDocument, target: str) -> list[CallRecord]:
    """The calls of the class of that name, or those that `target` picks as a pattern."""
    classes = {m.path for m in document.modules if target in (m.class_name, m.qualified_class) and target}
    if classes:
        return [call for call in document.calls if call.path in classes]
    try:
        return list(select_calls(document, target))
    except SelectorError as error:
        if _PATTERN.search(target):
            raise ExtractionError(target, "unknown", str(error)) from error
        return []


def _close(document: HierarchyDocument, target: str) -> str:
    names = dict.fromkeys(name for call in document.calls for name in (call.id, call.tag)) | dict.fromkeys(
        name for module in document.modules for name in (*module.aliases, module.class_name)
    )
    near = difflib.get_close_matches(target, names, n=3, cutoff=0.6)
    return (
        f"; did you mean {' or '.join(map(repr, near))}?" if near else ": 'modelexport tree FILE' shows what there is"
    )
