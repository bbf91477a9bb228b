"""Find the one module call that a target names: a path, a call, an alias, a tag or a selector."""

from __future__ import annotations

import difflib
import re

from modelexport.analysis.query import select_calls
from modelexport.errors import ExtractionError, InputError, SelectorError
from modelexport.hierarchy import CallId, CallRecord, HierarchyDocument

_SHOWN = 5
# Characters that only a selector has: then report the error of the selector.
_PATTERN = re.compile(r"[\s*?\[\]():]")


def find_call(document: HierarchyDocument, target: str) -> CallRecord:
    """The one call that `target` names.

    Raises:
        ExtractionError: No call, or several calls, match.
    """
    if not isinstance(target, str):
        raise InputError(f"a module is named by a string, as in 'encoder.layer.0', not by {type(target).__name__}")
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
        explanation = (
            f"it was called {times} times, the last is {str(CallId(canonical, times - 1))!r}"
            if times
            else "it was never called"
        )
        raise ExtractionError(target, "never_called", explanation)
    visible = {module.path for module in document.modules if module.visible}
    tagged = [call for call in document.calls if call.tag == target and call.path in visible]
    if len(tagged) == 1:
        return tagged[0]
    uncalled = next((module for module in document.modules if module.tag == target and module.visible), None)
    if uncalled is not None and not tagged:
        raise ExtractionError(target, "never_called", f"module {uncalled.path!r} was never called")
    found = tagged or _selected_calls(document, target)
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(repr(call.id) for call in found[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
        raise ExtractionError(target, "several", f"it picks {len(found)} calls: {names}. Name one of them")
    raise ExtractionError(target, "unknown", f"there is no such module, call, tag or class{_similar(document, target)}")


def _selected_calls(document: HierarchyDocument, target: str) -> list[CallRecord]:
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


def _similar(document: HierarchyDocument, target: str) -> str:
    names = dict.fromkeys(name for call in document.calls for name in (call.id, call.tag)) | dict.fromkeys(
        name for module in document.modules for name in (*module.aliases, module.class_name)
    )
    near = difflib.get_close_matches(target, names, n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ": 'modelexport tree FILE' lists the modules"
