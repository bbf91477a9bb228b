"""Zip files in which Python's `zipfile` finds one central directory and torch's reader another."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

_END_SIZE = 22
# What the hidden directory of `shifted_directory` reads as its first entry: lengths of name, extra and comment.
_NAME, _EXTRA, _COMMENT = (int.from_bytes(text, "little") for text in (b"at", b"a/", b"vw"))


@dataclass(frozen=True)
class _Stored:
    """A member as it lies in the file."""

    name: bytes
    size: int
    crc: int
    offset: int

    def entry(self, shift: int = 0, comment: bytes = b"") -> bytes:
        """Its entry in a central directory."""
        numbers = (20, 20, 0, 0, 0, 0x21, self.crc, self.size, self.size, len(self.name), 0, len(comment), 0, 0, 0)
        return struct.pack("<4s6H3I5HII", b"PK\1\2", *numbers, self.offset + shift) + self.name + comment


def _store(content: bytearray, folder: str, members: Mapping[str, bytes]) -> list[_Stored]:
    stored = []
    for name, data in members.items():
        full = f"{folder}/{name}".encode()
        crc = zlib.crc32(data)
        stored.append(_Stored(full, len(data), crc, len(content)))
        content += struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 0x21, crc, len(data), len(data), len(full), 0)
        content += full + data
    return stored


def _end(entries: int, size: int, offset: int) -> bytes:
    return struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, entries, entries, size, offset, 0)


def ignored_zip64_locator(seen: Mapping[str, bytes], hidden: Mapping[str, bytes]) -> bytes:
    """A zip64 locator leads to the hidden directory; `zipfile` expects the zip64 record right before the locator.

    The locator is the comment of the last entry, so that the visible directory ends where `zipfile` expects it to.
    """
    content = bytearray()
    visible, secret = _store(content, "n", seen), _store(content, "n", hidden)
    start, directory = len(content), b"".join(member.entry() for member in secret)
    content += directory
    record = len(content)
    numbers = (44, 45, 45, 0, 0, len(secret), len(secret), len(directory), start)
    content += struct.pack("<4sQ2H2I4Q", b"PK\6\6", *numbers) + bytes(64)
    start = len(content)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, record, 1)
    directory = b"".join(member.entry() for member in visible[:-1]) + visible[-1].entry(comment=locator)
    return bytes(content + directory + _end(len(visible), len(directory), start))


def shifted_directory(seen: Mapping[str, bytes], hidden: Mapping[str, bytes]) -> bytes:
    """The end record gives an offset 22 bytes behind the directory that `zipfile` reads, which is the one before it.

    `zipfile` takes the difference for a shift of the whole file. torch's reader starts inside the first entry of
    that directory, whose fields are chosen to be an entry for it as well; the hidden entries lie in its comment.
    """
    content = bytearray()
    first, *visible = _store(content, "n", {".data/vw": b"", **seen})
    secret = _store(content, "n", hidden)
    hidden_entries = b"".join(member.entry() for member in secret)
    # From the start of the first entry to the hidden ones, and how that is divided into name and comment.
    length = _END_SIZE + 46 + _NAME + _EXTRA + _COMMENT + len(hidden_entries) - 46
    name_length, comment_length = 0x7000, length - 0x7000
    assert name_length < comment_length < 1 << 16
    entry = bytearray(46 + length)
    numbers = (20, 20, 0, 0, 0, 0x21, first.crc, 0, 0, name_length, 0, comment_length, 0, 0, 0, _END_SIZE)
    struct.pack_into("<4s6H3I5HII", entry, 0, b"PK\1\2", *numbers)
    entry[22:26] = b"PK\1\2"
    entry[34:36] = b"\1\0"  # makes the method that torch's reader sees unequal to "stored" in its comparison of sizes
    entry[46:56] = b"n/.data/vw"
    entry[68:70] = b"n/"
    entry[70 : 68 + _NAME] = b"x" * (_NAME - 2)
    entry[-len(hidden_entries) :] = hidden_entries
    start = len(content)
    directory = bytes(entry) + b"".join(member.entry(shift=_END_SIZE) for member in visible)
    return bytes(content + directory + _end(len(secret) + 1, len(directory), start + _END_SIZE))


CONSTRUCTIONS = {make.__name__: make for make in (ignored_zip64_locator, shifted_directory)}
