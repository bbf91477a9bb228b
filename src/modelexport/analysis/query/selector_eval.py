"""Evaluate selectors: the calls and the nodes of a document that they select."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Collection, Iterable

from modelexport.analysis.query.selector_parser import (
    NODE_FIELDS,
    And,
    Expression,
    Not,
    Or,
    Term,
    parse_expression,
    shown,
    terms_of,
)
from modelexport.errors import InputError, SelectorError
from modelexport.hierarchy import CallRecord, HierarchyDocument, ModuleRecord, NodeRecord, ancestor_paths

# Similar names are searched among at most this many: the search is slow.
_MAX_CANDIDATES = 2_000


@dataclasses.dataclass(frozen=True)
class Selector:
    """A parsed selector."""

    text: str
    expression: Expression

    def calls(self, document: HierarchyDocument) -> tuple[CallRecord, ...]:
        """The calls that the selector names, in execution order, without the calls inside of them."""
        for term in terms_of(self.expression):
            if term.field in NODE_FIELDS:
                raise SelectorError(f"{shown(self.text)} has '{term}', which picks nodes: select modules or classes")
        index = _DocumentIndex(document)
        named, covered = _select_calls(self.expression, index)
        if covered and not named:
            raise SelectorError(f"{shown(self.text)} selects no module call, it only excludes some: write '** and …'")
        if not named:
            raise self._empty_selection(index, "no module call")
        return tuple(call for call in document.calls if call.id in named)

    def nodes(self, document: HierarchyDocument, *, contributors: bool = True) -> tuple[NodeRecord, ...]:
        """The nodes of all selected calls, in graph order.

        With contributors, a node also belongs to the calls that contributed to it: a fused node does the work of
        several. Without, it belongs only to its owner.
        """
        index = _DocumentIndex(document)
        found = _select_nodes(self.expression, index, contributors)
        if not found:
            raise self._empty_selection(index, "no node")
        return tuple(document.nodes[position] for position in sorted(found))

    def owned(self, document: HierarchyDocument) -> tuple[NodeRecord, ...]:
        """The nodes whose owner is selected; may be empty."""
        found = _select_nodes(self.expression, _DocumentIndex(document), contributors=False)
        return tuple(document.nodes[position] for position in sorted(found))

    def covered(self, document: HierarchyDocument) -> set[str] | None:
        """The selected calls with all calls inside of them; None for a selector of single nodes."""
        if any(term.field in NODE_FIELDS for term in terms_of(self.expression)):
            return None
        return _select_calls(self.expression, _DocumentIndex(document))[1]

    def unmatched(self, document: HierarchyDocument) -> tuple[str, ...]:
        """The terms that match nothing in the document: usually typing errors."""
        index = _DocumentIndex(document)
        return tuple(dict.fromkeys(str(term) for term in terms_of(self.expression) if not index.has_match(term)))

    def _empty_selection(self, index: _DocumentIndex, what: str) -> SelectorError:
        unmatched = [term for term in terms_of(self.expression) if not index.has_match(term)]
        if unmatched:
            near = index.similar_names(unmatched[0])
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "modelexport tree lists the modules"
            return SelectorError(f"{shown(self.text)} picks {what}: nothing matches '{unmatched[0]}'; {hint}")
        uncalled = [
            term for term in terms_of(self.expression) if term.field not in NODE_FIELDS and not index.named(term)
        ]
        if uncalled:
            return SelectorError(f"{shown(self.text)} picks {what}: '{uncalled[0]}' was never called")
        return SelectorError(
            f"{shown(self.text)} picks {what}, though each of its terms matches something: nothing matches all of "
            "them, or the optimizer removed the nodes"
        )


def parse_selector(text: str) -> Selector:
    """Parse a selector."""
    return Selector(text, parse_expression(text))


def select_calls(document: HierarchyDocument, text: str) -> tuple[CallRecord, ...]:
    """The module calls that a selector names; see `Selector.calls`."""
    return parse_selector(text).calls(document)


def select_nodes(document: HierarchyDocument, text: str, *, contributors: bool = True) -> tuple[NodeRecord, ...]:
    """The nodes of all calls that a selector names; see `Selector.nodes`."""
    return parse_selector(text).nodes(document, contributors=contributors)


class _DocumentIndex:
    """A document, indexed for the terms of a selector."""

    def __init__(self, document: HierarchyDocument) -> None:
        given: object = document  # untyped callers pass anything
        if not isinstance(given, HierarchyDocument):
            raise InputError(f"a selector is evaluated in a HierarchyDocument, not in {type(given).__name__}")
        self.document = document
        self._modules = {module.path: module for module in document.modules}
        self._calls: dict[str, list[CallRecord]] = {}
        for call in document.calls:
            self._calls.setdefault(call.path, []).append(call)

    def named(self, term: Term) -> set[str]:
        """The calls that a term names."""
        match = functools.cache(term.pattern.matches)
        found: set[str] = set()
        if term.field == "tag":
            # A hidden module has the tag of its parent, whose calls include it.
            found.update(c.id for c in self.document.calls if match(c.tag) and self._modules[c.path].visible)
        if term.field == "call" or (term.field == "name" and "@" in term.pattern.text):
            found.update(c.id for c in self.document.calls if match(c.id) or match(f"{c.path}@{c.index}"))
        paths = {module.path for module in self.document.modules if any(map(match, self._module_names(term, module)))}
        found.update(call.id for path in paths for call in self._calls.get(path, ()))
        uncalled = {path for path in paths if path not in self._calls}
        return found | self._called_below(uncalled) if uncalled else found

    def _module_names(self, term: Term, module: ModuleRecord) -> tuple[str, ...]:
        """The values of a module in the field of the term."""
        if term.field == "class":
            return (module.class_name, module.qualified_class)
        if term.field in ("name", "path"):
            return (module.path, *module.aliases)
        # A tag names a call, except for a module that was never called.
        return (module.tag,) if term.field == "tag" and module.visible and module.path not in self._calls else ()

    def _called_below(self, uncalled: set[str]) -> set[str]:
        """The outermost calls inside modules that are never called themselves, such as a ModuleList."""
        found: set[str] = set()
        for path, calls in self._calls.items():
            for outer in ancestor_paths(path):
                if outer in uncalled:
                    found.update(call.id for call in calls)
                elif outer not in self._calls:
                    continue
                break
        return found

    def inside(self, named: Collection[str]) -> set[str]:
        """These calls and all calls inside of them."""
        selected: dict[str, bool] = {}
        parents = {call.id: call.parent for call in self.document.calls}
        for call in parents:
            path: list[str] = []
            current: str | None = call
            # Each call is decided once, so that a cycle of callers ends.
            while current is not None and current not in selected:
                selected[current] = current in named
                if selected[current]:
                    break
                path.append(current)
                current = parents.get(current)
            if current is not None and selected[current]:
                selected.update(dict.fromkeys(path, True))
        return {call for call, is_chosen in selected.items() if is_chosen}

    def has_match(self, term: Term) -> bool:
        """Whether anything in the document matches the term."""
        match = functools.cache(term.pattern.matches)
        return any(map(match, self._names(term.field))) or (term.field not in NODE_FIELDS and bool(self.named(term)))

    def similar_names(self, term: Term) -> list[str]:
        """Names similar to that of an unmatched term."""
        names = list(dict.fromkeys(self._names(term.field)))[:_MAX_CANDIDATES]
        return difflib.get_close_matches(term.pattern.text[:200], names, n=2, cutoff=0.6)

    def _names(self, field: str) -> Iterable[str]:
        if field in NODE_FIELDS:
            return (name for node in self.document.nodes for name in _node_names(field, node))
        if field == "class":
            return (name for m in self.document.modules for name in (m.class_name, m.qualified_class))
        if field == "tag":
            return (m.tag for m in self.document.modules if m.visible)
        return (name for m in self.document.modules for name in (m.path, *m.aliases))


def _select_calls(expression: Expression, index: _DocumentIndex) -> tuple[set[str], set[str]]:
    """The calls that an expression names, and those with all calls inside of them, which it covers.

    ``encoder.layer.0 and class:Linear`` names the Linear calls inside of the layer: ``and`` names what one part names
    and all parts cover. ``not`` names nothing.
    """
    if isinstance(expression, Term):
        named = index.named(expression)
        return named, index.inside(named)
    if isinstance(expression, Not):
        _, covered = _select_calls(expression.part, index)
        return set(), {call.id for call in index.document.calls} - covered
    parts = [_select_calls(part, index) for part in expression.parts]
    named = set().union(*(part_named for part_named, _ in parts))
    if isinstance(expression, Or):
        return named, set().union(*(covered for _, covered in parts))
    covered = set.intersection(*(covered for _, covered in parts))
    return named & covered, covered


def _select_nodes(expression: Expression, index: _DocumentIndex, contributors: bool) -> set[int]:
    """The positions of the nodes that an expression selects."""
    nodes = index.document.nodes
    if isinstance(expression, Not):
        return set(range(len(nodes))) - _select_nodes(expression.part, index, contributors)
    if isinstance(expression, And):
        return set.intersection(*(_select_nodes(part, index, contributors) for part in expression.parts))
    if isinstance(expression, Or):
        return set().union(*(_select_nodes(part, index, contributors) for part in expression.parts))
    match = functools.cache(expression.pattern.matches)
    if expression.field in NODE_FIELDS:
        return {i for i, node in enumerate(nodes) if any(map(match, _node_names(expression.field, node)))}
    inside = index.inside(index.named(expression))
    return {
        i
        for i, node in enumerate(nodes)
        if node.module in inside or (contributors and not inside.isdisjoint(node.contributors))
    }


def _node_names(field: str, node: NodeRecord) -> tuple[str, ...]:
    """The values of a node in a field; an operator has a name with its domain, and one without."""
    if field == "op":
        return (node.op, node.op.rpartition("::")[2]) if "::" in node.op else (node.op,)
    return (node.kind if field == "kind" else node.id,)
