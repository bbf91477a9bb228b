"""Parse selectors: paths, calls, tags, classes, operators, combined with and/or/not.

docs/selectors.md describes the syntax. The parser limits length and nesting, and never evaluates text as code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from modelexport.analysis.query.glob import Pattern, Piece
from modelexport.errors import SelectorError
from modelexport.hierarchy import Kind

MAX_LENGTH = 65_536
MAX_DEPTH = 64
# An error repeats at most this many characters of a selector.
_MAX_SHOWN = 200

# The fields of terms, and the separator of the segments of their values.
_FIELDS = {"path": ".", "call": ".", "tag": "/", "class": "", "op": "", "kind": "", "node": ""}
# The fields that select single nodes rather than calls.
NODE_FIELDS = frozenset({"op", "kind", "node"})
_KEYWORDS = frozenset({"and", "or", "not"})


@dataclasses.dataclass(frozen=True)
class Term:
    """A field and the pattern that its value must match. The field `name` stands for a path, an alias or a call."""

    field: str
    pattern: Pattern

    def __str__(self) -> str:
        return self.pattern.text if self.field == "name" else f"{self.field}:{self.pattern.text}"


@dataclasses.dataclass(frozen=True)
class And:
    """Selects what all parts select."""

    parts: tuple[Expression, ...]


@dataclasses.dataclass(frozen=True)
class Or:
    """Selects what any part selects."""

    parts: tuple[Expression, ...]


@dataclasses.dataclass(frozen=True)
class Not:
    """Selects what the part does not select."""

    part: Expression


Expression = Term | And | Or | Not


def parse_expression(text: str) -> Expression:
    """Parse a selector."""
    if not isinstance(text, str):
        raise SelectorError(f"a selector is a string, not {type(text).__name__}")
    if len(text) > MAX_LENGTH:
        raise SelectorError(f"a pattern of {len(text)} characters is too long: the limit is {MAX_LENGTH}")
    return _Parser(text).parse()


@dataclasses.dataclass(frozen=True, slots=True)
class _Token:
    start: int
    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        """The text of an unquoted token; a quoted one is neither a keyword nor a parenthesis."""
        return "" if any(piece.literal for piece in self.pieces) else "".join(piece.text for piece in self.pieces)


class _Parser:
    """A recursive-descent parser: ``or`` binds weakest, then ``and``, then ``not``."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokenize(text))
        self._next = 0

    def parse(self) -> Expression:
        expression = self._parse_or(0)
        if self._next < len(self._tokens):
            closing = self._tokens[self._next].text == ")"
            raise self._error("this ')' has no '('" if closing else "expected 'and' or 'or' before this")
        return expression

    def _parse_or(self, depth: int) -> Expression:
        parts = [self._parse_and(depth)]
        while self._accept("or"):
            parts.append(self._parse_and(depth))
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _parse_and(self, depth: int) -> Expression:
        parts = [self._parse_not(depth)]
        while self._accept("and"):
            parts.append(self._parse_not(depth))
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _parse_not(self, depth: int) -> Expression:
        if depth > MAX_DEPTH:
            raise self._error(f"nested deeper than {MAX_DEPTH}")
        if self._accept("not"):
            inner = self._parse_not(depth + 1)
            return inner.part if isinstance(inner, Not) else Not(inner)
        if self._accept("("):
            opened = self._next - 1
            expression = self._parse_or(depth + 1)
            if not self._accept(")"):
                raise self._error("this '(' is not closed", at=opened if self._next >= len(self._tokens) else None)
            return expression
        if self._next >= len(self._tokens) or self._tokens[self._next].text in (*_KEYWORDS, ")"):
            raise self._error("expected a module path, a tag, class:, op: or '('")
        self._next += 1
        return self._parse_term(self._next - 1)

    def _parse_term(self, index: int) -> Term:
        pieces = self._tokens[index].pieces
        head = pieces[0]
        if head.literal or head.text.startswith("/"):
            field = "tag" if head.text.startswith("/") and not head.literal else "name"
        else:
            prefix, colon, value = head.text.partition(":")
            if not colon:
                field = "name"
            elif prefix in _FIELDS:
                field, pieces = prefix, (Piece(value), *pieces[1:])
            else:
                known = ", ".join(f"{name}:" for name in _FIELDS)
                raise self._error(f"there is no {prefix + ':'!r} (there are {known}); quote a name with a colon", index)
        pattern = Pattern(pieces, _FIELDS.get(field, "."))
        if field == "kind" and pattern.is_literal and pattern.text not in list(Kind):
            raise self._error(f"there is no kind {pattern.text!r} (there are {', '.join(Kind)})", index)
        if field != "name" and not pattern.text:
            raise self._error(f"'{field}:' has no value", index)
        return Term(field, pattern)

    def _accept(self, word: str) -> bool:
        if self._next < len(self._tokens) and self._tokens[self._next].text == word:
            self._next += 1
            return True
        return False

    def _error(self, problem: str, at: int | None = None) -> SelectorError:
        index = self._next if at is None else at
        if index >= len(self._tokens):
            return SelectorError(f"the pattern {shown(self._text)} ends too early: {problem}")
        start = self._tokens[index].start
        return SelectorError(f"the pattern {shown(self._text)} has an error at character {start + 1}: {problem}")


def _tokenize(text: str) -> Iterator[_Token]:
    """Split text into parentheses and words; a word consists of quoted and unquoted pieces."""
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
    """The text between quotes and the position after it. A backslash escapes the next character."""
    content: list[str] = []
    position = start + 1
    while position < len(text):
        if text[position] == text[start]:
            return "".join(content), position + 1
        if text[position] == "\\":
            position += 1
        content.append(text[position : position + 1])
        position += 1
    raise SelectorError(f"the pattern {shown(text)} has an error at character {start + 1}: this quote is not closed")


def shown(text: str) -> str:
    """A selector for an error message, shortened."""
    return repr(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…")


def terms_of(expression: Expression) -> Iterator[Term]:
    """The terms of an expression, from left to right."""
    waiting: list[Expression] = [expression]
    while waiting:
        current = waiting.pop()
        if isinstance(current, Term):
            yield current
        elif isinstance(current, Not):
            waiting.append(current.part)
        else:
            waiting.extend(reversed(current.parts))
