"""Globs on dotted paths, tags and names, matched in time linear in the length of the name.

A regular expression for ``*a*a*a*`` can backtrack for hours on a long name, and names come from untrusted files. The
atomic groups of `fnmatch.translate` require that all wildcards match the same characters; here ``*`` stays within a
segment and ``**`` does not. So a pattern is an automaton whose states are built when they are reached.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

_WILD = frozenset("*?[")
# The limit of cached transitions: a name with more distinct characters is slow, but needs no more memory.
_MAX_CACHED = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """A part of a pattern: literal (quoted) text, or text with wildcards."""

    text: str
    literal: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class _Token:
    """One step of a pattern.

    Attributes:
        ranges: The first and last characters of the accepted ranges.
        negated: Whether characters outside of all ranges are accepted instead.
        repeated: Whether the step accepts any number of characters, including none.
        skips: How many steps, this one included, can be skipped together.
    """

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False
    repeated: bool = False
    skips: int = 0

    def accepts(self, character: str) -> bool:
        return any(first <= character <= last for first, last in self.ranges) != self.negated


def _exactly(character: str) -> _Token:
    return _Token(((character, character),))


_ANY = _Token((), negated=True)
# Accepts no character. It precedes any number of segments and their separator, and allows to skip both. After a
# character of a segment, the separator is required.
_NO_SEGMENTS = _Token((), repeated=True, skips=3)


class Pattern:
    """A glob: ``*`` and ``?`` stay within a segment, ``**`` does not, ``[0-3]`` and ``[!0-3]`` match one character.

    A segment ``**`` matches any number of segments, including none: ``a.**.b`` matches ``a.b``. At the end it matches
    at least one: ``a.**`` matches everything inside of ``a``.

    Args:
        pieces: The text, in quoted and unquoted pieces.
        separator: The separator of segments; empty if the text has none.
    """

    def __init__(self, pieces: Iterable[Piece], separator: str) -> None:
        pieces = tuple(pieces)
        self.text = "".join(piece.text for piece in pieces)
        self.is_literal = all(piece.literal or not _WILD.intersection(piece.text) for piece in pieces)
        self._tokens: tuple[_Token, ...] = () if self.is_literal else tuple(_tokens(pieces, separator))
        # A state is the set of reachable positions. The transitions are cached by state and character.
        self._start = self._closed({0})
        self._transitions: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, name: str) -> bool:
        """Whether the pattern matches the whole name."""
        if self.is_literal:
            return name == self.text
        state, cached = self._start, self._transitions
        for character in name:
            following = cached.get((state, character))
            if following is None:
                if len(cached) >= _MAX_CACHED:
                    cached.clear()
                following = cached[state, character] = self._step(state, character)
            if not following:
                return False
            state = following
        return len(self._tokens) in state

    def _step(self, state: frozenset[int], character: str) -> frozenset[int]:
        tokens = self._tokens
        return self._closed(
            {
                position if tokens[position].repeated else position + 1
                for position in state
                if position < len(tokens) and tokens[position].accepts(character)
            }
        )

    def _closed(self, positions: set[int]) -> frozenset[int]:
        """The positions, and all that are reachable from them without a character."""
        waiting = list(positions)
        while waiting:
            position = waiting.pop()
            if position >= len(self._tokens):
                continue
            token = self._tokens[position]
            for step in (1 if token.repeated else 0, token.skips):
                further = position + step
                if further not in positions:
                    positions.add(further)
                    waiting.append(further)
        return frozenset(positions)


def _tokens(pieces: tuple[Piece, ...], separator: str) -> list[_Token]:
    within = dataclasses.replace(_exactly(separator), negated=True) if separator else _ANY
    tokens: list[_Token] = []
    before = ""
    for index, piece in enumerate(pieces):
        if piece.literal:
            tokens += [_exactly(character) for character in piece.text]
            before = piece.text[-1:] or before
            continue
        text, position = piece.text, 0
        while position < len(text):
            character = text[position]
            if text.startswith("**", position):
                end = position + 2
                while text.startswith("*", end):
                    end += 1
                if separator and before in ("", separator) and text.startswith(separator, end):
                    # Any number of whole segments, including none.
                    tokens += [_NO_SEGMENTS, dataclasses.replace(_ANY, repeated=True), _exactly(separator)]
                    position = end + 1
                    before = separator
                    continue
                if separator and before == separator and end == len(text) and index == len(pieces) - 1:
                    # At the end: at least one character.
                    tokens.append(_ANY)
                tokens.append(dataclasses.replace(_ANY, repeated=True))
                position = end
            elif character == "*":
                tokens.append(dataclasses.replace(within, repeated=True))
                position += 1
            elif character == "?":
                tokens.append(within)
                position += 1
            elif character == "[" and (end := text.find("]", position + 2)) > 0:
                tokens.append(_one_of(text[position + 1 : end]))
                position = end + 1
            else:
                tokens.append(_exactly(character))
                position += 1
            before = character
    return tokens


def _one_of(inside: str) -> _Token:
    negated = inside.startswith("!") and len(inside) > 1
    listed = inside[1:] if negated else inside
    ranges: list[tuple[str, str]] = []
    position = 0
    while position < len(listed):
        is_range = listed[position + 1 : position + 2] == "-" and position + 2 < len(listed)
        last = position + 2 if is_range else position
        ranges.append((listed[position], listed[last]))
        position = last + 1
    return _Token(tuple(ranges), negated)
