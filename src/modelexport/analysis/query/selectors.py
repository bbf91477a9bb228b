"""One language to say which module calls and nodes are meant: paths, calls, tags, classes, operations, and/or/not.

docs/selectors.md says what each form picks. A pattern is parsed by hand, with limits, and never becomes code.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Collection, Iterable, Iterator

from modelexport.analysis.query.glob import Pattern, Piece
from modelexport.errors import SelectorError
from modelexport.hierarchy import CallRecord, HierarchyDocument, Kind, ModuleRecord, NodeRecord, ancestor_paths

MAX_LENGTH = 65_536
MAX_DEPTH = 64
# Close matches are looked for among this many names at most: finding them takes long.
_MAX_CANDIDATES = 2_000
# How much of a pattern an error repeats.
_SHOWN = 200

# What stands before the colon, with what separates the segments of what stands behind it.
_FIELDS = {"path": ".", "call": ".", "tag": "/", "class": "", "op": "", "kind": "", "node": ""}
_OF_NODES = frozenset({"op", "kind", "node"})
_WORDS = frozenset({"and", "or", "not"})


@dataclasses.dataclass(frozen=True)
class Term:
    """One thing that is named: the field it is looked for in, and the pattern."""

    field: str
    pattern: Pattern

    def __str__(self) -> str:
        return self.pattern.text if self.field == "name" else f"{self.field}:{self.pattern.text}"


@dataclasses.dataclass(frozen=True)
class And:
    """What all parts pick."""

    parts: tuple[Expression, ...]


@dataclasses.dataclass(frozen=True)
class Or:
    """What any part picks."""

    parts: tuple[Expression, ...]


@dataclasses.dataclass(frozen=True)
class Not:
    """What the part does not pick."""

    part: Expression


Expression = Term | And | Or | Not


@dataclasses.dataclass(frozen=True)
class Selector:
    """A parsed pattern."""

    text: str
    expression: Expression

    def calls(self, document: HierarchyDocument) -> tuple[CallRecord, ...]:
        """The calls that the pattern itself names, in the order they began, without those inside of them.

        Raises:
            SelectorError: It names no call, or asks for something that calls do not have.
        """
        for term in _terms(self.expression):
            if term.field in _OF_NODES:
                raise SelectorError(f"{_shown(self.text)} has '{term}', which picks nodes: name modules or classes")
        view = _View(document)
        chosen = _Calls(view).evaluate(self.expression)
        if chosen.covered and not chosen.named:
            raise SelectorError(f"{_shown(self.text)} names no module call, it only leaves some out: write '** and …'")
        if not chosen.named:
            raise self._nothing(view, "no module call")
        return tuple(call for call in document.calls if call.id in chosen.named)

    def nodes(self, document: HierarchyDocument, *, contributors: bool = True) -> tuple[NodeRecord, ...]:
        """The nodes in everything the pattern names, in graph order.

        Args:
            document: Where to look.
            contributors: Whether a node counts as well for each call that contributed to it (a fused node does the
                work of several), or for its owner alone.

        Raises:
            SelectorError: It picks no node.
        """
        view = _View(document)
        found = _nodes(self.expression, view, contributors)
        if not found:
            raise self._nothing(view, "no node")
        return tuple(document.nodes[position] for position in sorted(found))

    def owned(self, document: HierarchyDocument) -> tuple[NodeRecord, ...]:
        """Those of `nodes` that count for their owner already; may be none."""
        found = _nodes(self.expression, _View(document), contributors=False)
        return tuple(document.nodes[position] for position in sorted(found))

    def covered(self, document: HierarchyDocument) -> set[str] | None:
        """The calls that the pattern names with all inside of them; None for one that speaks of single nodes."""
        if any(term.field in _OF_NODES for term in _terms(self.expression)):
            return None
        return _Calls(_View(document)).evaluate(self.expression).covered

    def unmatched(self, document: HierarchyDocument) -> tuple[str, ...]:
        """The terms of the pattern that nothing in the document fits: usually typing errors."""
        view = _View(document)
        return tuple(dict.fromkeys(str(term) for term in _terms(self.expression) if not view.fits(term)))

    def _nothing(self, view: _View, what: str) -> SelectorError:
        unmatched = [term for term in _terms(self.expression) if not view.fits(term)]
        if unmatched:
            near = view.close_to(unmatched[0])
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "modelexport tree shows what there is"
            return SelectorError(f"{_shown(self.text)} picks {what}: nothing here is '{unmatched[0]}'; {hint}")
        idle = [term for term in _terms(self.expression) if term.field not in _OF_NODES and not view.named(term)]
        if idle:
            return SelectorError(f"{_shown(self.text)} picks {what}: '{idle[0]}' was never called")
        return SelectorError(
            f"{_shown(self.text)} picks {what}, though each of its terms is here: nothing fits all of it, or the "
            "optimizer left no node of it"
        )


def parse(text: str) -> Selector:
    """Read a pattern.

    Raises:
        SelectorError: It is not one; the message says where.
    """
    if len(text) > MAX_LENGTH:
        raise SelectorError(f"a pattern of {len(text)} characters is too long: the limit is {MAX_LENGTH}")
    return Selector(text, _Parser(text).parse())


def select_calls(document: HierarchyDocument, text: str) -> tuple[CallRecord, ...]:
    """The module calls that a pattern itself names; see `Selector.calls`."""
    return parse(text).calls(document)


def select_nodes(document: HierarchyDocument, text: str, *, contributors: bool = True) -> tuple[NodeRecord, ...]:
    """The nodes in everything that a pattern names; see `Selector.nodes`."""
    return parse(text).nodes(document, contributors=contributors)


# --- reading ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Token:
    start: int
    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        """The token where it is bare; what is quoted is no keyword and no parenthesis."""
        return "" if any(piece.literal for piece in self.pieces) else "".join(piece.text for piece in self.pieces)


class _Parser:
    """``or`` of ``and`` of ``not`` of terms and parentheses."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokenize(text))
        self._next = 0

    def parse(self) -> Expression:
        expression = self._either(0)
        if self._next < len(self._tokens):
            closing = self._tokens[self._next].text == ")"
            raise self._error("this ')' was never opened" if closing else "expected 'and' or 'or' before this")
        return expression

    def _either(self, depth: int) -> Expression:
        parts = [self._both(depth)]
        while self._accept("or"):
            parts.append(self._both(depth))
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _both(self, depth: int) -> Expression:
        parts = [self._single(depth)]
        while self._accept("and"):
            parts.append(self._single(depth))
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _single(self, depth: int) -> Expression:
        if depth > MAX_DEPTH:
            raise self._error(f"nested deeper than {MAX_DEPTH}")
        if self._accept("not"):
            inner = self._single(depth + 1)
            return inner.part if isinstance(inner, Not) else Not(inner)
        if self._accept("("):
            opened = self._next - 1
            expression = self._either(depth + 1)
            if not self._accept(")"):
                raise self._error("this '(' is not closed", at=opened if self._next >= len(self._tokens) else None)
            return expression
        if self._next >= len(self._tokens) or self._tokens[self._next].text in (*_WORDS, ")"):
            raise self._error("expected a module path, a tag, class:, op: or '('")
        self._next += 1
        return self._term(self._next - 1)

    def _term(self, index: int) -> Term:
        pieces = self._tokens[index].pieces
        head = pieces[0]
        if head.literal or head.text.startswith("/"):
            field = "tag" if head.text.startswith("/") and not head.literal else "name"
        else:
            before, colon, behind = head.text.partition(":")
            if not colon:
                field = "name"
            elif before in _FIELDS:
                field, pieces = before, (Piece(behind), *pieces[1:])
            else:
                known = ", ".join(f"{name}:" for name in _FIELDS)
                raise self._error(f"there is no {before + ':'!r} (there are {known}); quote a name with a colon", index)
        pattern = Pattern(pieces, _FIELDS.get(field, "."))
        if field == "kind" and pattern.is_literal and pattern.text not in list(Kind):
            raise self._error(f"there is no kind {pattern.text!r} (there are {', '.join(Kind)})", index)
        if field != "name" and not pattern.text:
            raise self._error(f"nothing stands behind '{field}:'", index)
        return Term(field, pattern)

    def _accept(self, word: str) -> bool:
        if self._next < len(self._tokens) and self._tokens[self._next].text == word:
            self._next += 1
            return True
        return False

    def _error(self, problem: str, at: int | None = None) -> SelectorError:
        index = self._next if at is None else at
        if index >= len(self._tokens):
            return SelectorError(f"the pattern {_shown(self._text)} ends too early: {problem}")
        start = self._tokens[index].start
        return SelectorError(f"the pattern {_shown(self._text)} has an error at character {start + 1}: {problem}")


def _tokenize(text: str) -> Iterator[_Token]:
    """Words, made of bare and quoted pieces, and parentheses."""
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
        elif text[position] in "()":
            yield _Token(position, (Piece(text[position]),))
            position += 1
        else:
            start, pieces = position, []
            while position < len(text) and not text[position].isspace() and text[position] not in "()":
                if text[position] in "'\"":
                    quoted, position = _quoted(text, position)
                    pieces.append(Piece(quoted, literal=True))
                else:
                    begin = position
                    while position < len(text) and not text[position].isspace() and text[position] not in "()'\"":
                        position += 1
                    pieces.append(Piece(text[begin:position]))
            yield _Token(start, tuple(pieces))


def _quoted(text: str, start: int) -> tuple[str, int]:
    """What stands between quotes, where a backslash takes away the meaning of the next character."""
    content: list[str] = []
    position = start + 1
    while position < len(text):
        if text[position] == text[start]:
            return "".join(content), position + 1
        if text[position] == "\\":
            position += 1
        content.append(text[position : position + 1])
        position += 1
    raise SelectorError(f"the pattern {_shown(text)} has an error at character {start + 1}: this quote is not closed")


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def _terms(expression: Expression) -> Iterator[Term]:
    waiting: list[Expression] = [expression]
    while waiting:
        current = waiting.pop()
        if isinstance(current, Term):
            yield current
        elif isinstance(current, Not):
            waiting.append(current.part)
        else:
            waiting.extend(reversed(current.parts))


# --- what it picks ---------------------------------------------------------------------------------------------


class _View:
    """A document, indexed for the terms of a pattern."""

    def __init__(self, document: HierarchyDocument) -> None:
        self.document = document
        self._modules = {module.path: module for module in document.modules}
        self._calls: dict[str, list[CallRecord]] = {}
        for call in document.calls:
            self._calls.setdefault(call.path, []).append(call)

    def named(self, term: Term) -> set[str]:
        """The calls that the term itself names."""
        match = _remembering(term.pattern.matches)
        found: set[str] = set()
        if term.field == "tag":
            # A hidden module shows the tag of the one around it, and is inside of it anyway.
            found.update(c.id for c in self.document.calls if match(c.tag) and self._modules[c.path].visible)
        if term.field == "call" or (term.field == "name" and "@" in term.pattern.text):
            found.update(c.id for c in self.document.calls if match(c.id) or match(f"{c.path}@{c.index}"))
        paths = {module.path for module in self.document.modules if any(map(match, self._module_names(term, module)))}
        found.update(call.id for path in paths for call in self._calls.get(path, ()))
        idle = {path for path in paths if path not in self._calls}
        return found | self._called_below(idle) if idle else found

    def _module_names(self, term: Term, module: ModuleRecord) -> tuple[str, ...]:
        """What the module is known by in the field of the term."""
        if term.field == "class":
            return (module.class_name, module.qualified_class)
        if term.field in ("name", "path"):
            return (module.path, *module.aliases)
        # Tags are those of calls, but for a module without any.
        return (module.tag,) if term.field == "tag" and module.visible and module.path not in self._calls else ()

    def _called_below(self, idle: set[str]) -> set[str]:
        """The outermost calls of modules within these, which only hold others: a list that is walked by hand."""
        found: set[str] = set()
        for path, calls in self._calls.items():
            for outer in ancestor_paths(path):
                if outer in idle:
                    found.update(call.id for call in calls)
                elif outer not in self._calls:
                    continue
                break
        return found

    def inside(self, named: Collection[str]) -> set[str]:
        """The named calls, and all that ran inside of them."""
        chosen: dict[str, bool] = {}
        parents = {call.id: call.parent for call in self.document.calls}
        for call in parents:
            way: list[str] = []
            current: str | None = call
            # A document that lies can have calls that made each other.
            while current is not None and current not in chosen:
                chosen[current] = current in named
                if chosen[current]:
                    break
                way.append(current)
                current = parents.get(current)
            if current is not None and chosen[current]:
                chosen.update(dict.fromkeys(way, True))
        return {call for call, is_chosen in chosen.items() if is_chosen}

    def fits(self, term: Term) -> bool:
        """Whether there is anything in the document that the term speaks of."""
        match = _remembering(term.pattern.matches)
        if term.field in _OF_NODES:
            return any(match(name) for name in self._names(term.field))
        return bool(self.named(term)) or any(match(name) for name in self._names(term.field))

    def close_to(self, term: Term) -> list[str]:
        """Names that look like the one that was not found."""
        names = list(dict.fromkeys(self._names(term.field)))[:_MAX_CANDIDATES]
        return difflib.get_close_matches(term.pattern.text[:200], names, n=2, cutoff=0.6)

    def _names(self, field: str) -> Iterable[str]:
        if field == "op":
            return (name for node in self.document.nodes for name in _operation_names(node.op))
        if field == "kind":
            return (node.kind for node in self.document.nodes)
        if field == "node":
            return (node.id for node in self.document.nodes)
        if field == "class":
            return (name for m in self.document.modules for name in (m.class_name, m.qualified_class))
        if field == "tag":
            return (m.tag for m in self.document.modules if m.visible)
        return (name for m in self.document.modules for name in (m.path, *m.aliases))


@dataclasses.dataclass(frozen=True, slots=True)
class _Chosen:
    """The calls that an expression names itself, and those it covers because they ran inside of them."""

    named: set[str]
    covered: set[str]


class _Calls:
    """Evaluates an expression on calls.

    ``encoder.layer.0 and class:Linear`` names the Linear calls inside of the layer: what one side names, as far as the
    other covers it. What is only left out (``not …``) names nothing.
    """

    def __init__(self, view: _View) -> None:
        self._view = view

    def evaluate(self, expression: Expression) -> _Chosen:
        if isinstance(expression, Term):
            named = self._view.named(expression)
            return _Chosen(named, self._view.inside(named))
        if isinstance(expression, Not):
            inner = self.evaluate(expression.part)
            return _Chosen(set(), {call.id for call in self._view.document.calls} - inner.covered)
        parts = [self.evaluate(part) for part in expression.parts]
        named = set().union(*(part.named for part in parts))
        if isinstance(expression, Or):
            return _Chosen(named, set().union(*(part.covered for part in parts)))
        covered = set.intersection(*(part.covered for part in parts))
        return _Chosen(named & covered, covered)


def _nodes(expression: Expression, view: _View, contributors: bool) -> set[int]:
    """The positions of the nodes that an expression picks."""
    nodes = view.document.nodes
    if isinstance(expression, Not):
        return set(range(len(nodes))) - _nodes(expression.part, view, contributors)
    if isinstance(expression, And):
        return set.intersection(*(_nodes(part, view, contributors) for part in expression.parts))
    if isinstance(expression, Or):
        return set().union(*(_nodes(part, view, contributors) for part in expression.parts))
    match = _remembering(expression.pattern.matches)
    if expression.field == "op":
        return {i for i, node in enumerate(nodes) if any(map(match, _operation_names(node.op)))}
    if expression.field == "kind":
        return {i for i, node in enumerate(nodes) if match(node.kind)}
    if expression.field == "node":
        return {i for i, node in enumerate(nodes) if match(node.id)}
    inside = view.inside(view.named(expression))
    return {
        i
        for i, node in enumerate(nodes)
        if node.module in inside or (contributors and not inside.isdisjoint(node.contributors))
    }


def _operation_names(op: str) -> tuple[str, ...]:
    """An operation by its name alone, and with the domain that defines it."""
    return (op, op.rpartition("::")[2]) if "::" in op else (op,)


def _remembering(match: Callable[[str], bool]) -> Callable[[str], bool]:
    """The same function, asked once for each name: names repeat, and matching takes longer than looking up."""
    known: dict[str, bool] = {}

    def remembered(name: str) -> bool:
        found = known.get(name)
        if found is None:
            found = known[name] = match(name)
        return found

    return remembered
