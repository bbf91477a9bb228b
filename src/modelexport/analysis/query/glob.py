"""Globs on dotted paths, tags and names, matched in time linear in the length of the name.

A regular expression made from ``*a*a*a*`` backtracks for hours on a long name that nearly matches, and names come from
untrusted files. The atomic groups of `fnmatch.translate` need all wildcards to match the same characters; here ``*``
stays within a segment and ``**`` does not. So a pattern is an automaton whose states are built when they are reached.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

_WILD = frozenset("*?[")
# How many transitions a pattern remembers; a name with more different characters than this is slow, not large.
_MOST_REMEMBERED = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """A part of a pattern: text that stands for itself (it was quoted), or text in which wildcards count."""

    text: str
    literal: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class _Token:
    """One step of a pattern.

    Attributes:
        ranges: First and last of the characters that one has to be among.
        negated: Whether it has to be outside of all of them.
        repeated: Whether the step takes any number of characters, none included.
        skips: How many steps, this one included, may be left out together.
    """

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False
    repeated: bool = False
    skips: int = 0

    def takes(self, character: str) -> bool:
        return any(first <= character <= last for first, last in self.ranges) != self.negated


def _exactly(character: str) -> _Token:
    return _Token(((character, character),))


_ANY = _Token((), negated=True)
# Takes nothing: stands before any number of segments and their separator, and lets both be left out. Only before: once
# a character of them was taken, the separator has to come.
_NO_SEGMENTS = _Token((), repeated=True, skips=3)


class Pattern:
    """A glob: ``*`` and ``?`` stay within a segment, ``**`` does not, ``[0-3]`` and ``[!0-3]`` take one character.

    A whole segment ``**`` stands for any number of segments, none included: ``a.**.b`` matches ``a.b``. At the end it
    stands for at least one: ``a.**`` is everything inside of ``a``.

    Args:
        pieces: The text, with what was quoted told apart.
        separator: What ends a segment; empty where the text has no segments.
    """

    def __init__(self, pieces: Iterable[Piece], separator: str) -> None:
        pieces = tuple(pieces)
        self.text = "".join(piece.text for piece in pieces)
        self.is_literal = all(piece.literal or not _WILD.intersection(piece.text) for piece in pieces)
        self._tokens: tuple[_Token, ...] = () if self.is_literal else tuple(_tokens(pieces, separator))
        self._prefix = "" if self.is_literal else _fixed_start(pieces)
        # A state is the set of positions that can be reached; the following state by state and character.
        self._start = self._closed({0})
        self._following: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, name: str) -> bool:
        """Whether the whole name fits."""
        if self.is_literal:
            return name == self.text
        if not name.startswith(self._prefix):
            return False
        state, known = self._start, self._following
        for character in name:
            following = known.get((state, character))
            if following is None:
                if len(known) >= _MOST_REMEMBERED:
                    known.clear()
                following = known[state, character] = self._step(state, character)
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
                if position < len(tokens) and tokens[position].takes(character)
            }
        )

    def _closed(self, positions: set[int]) -> frozenset[int]:
        """The positions with all that can be reached from them without a character."""
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


def _fixed_start(pieces: tuple[Piece, ...]) -> str:
    fixed = ""
    for piece in pieces:
        length = len(piece.text)
        if not piece.literal:
            length = next((i for i, character in enumerate(piece.text) if character in _WILD), length)
        fixed += piece.text[:length]
        if length < len(piece.text):
            return fixed
    return fixed


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
                    # Any number of whole segments, none included.
                    tokens += [_NO_SEGMENTS, dataclasses.replace(_ANY, repeated=True), _exactly(separator)]
                    position = end + 1
                    before = separator
                    continue
                if separator and before == separator and end == len(text) and index == len(pieces) - 1:
                    # At the end: at least something.
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
