"""Mutations of bytes, and of protobuf messages by their fields, whatever they mean."""

from __future__ import annotations

from random import Random

from modelexport.storage.wire_format import _encode, _spans


def mutate_bytes(draw: Random, data: bytes, other: bytes) -> bytes:
    """Flip, cut, insert, double, splice with another file, or end early: once or a few times."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 12))):
        if not changed:
            break
        at = draw.randrange(len(changed))
        how = draw.randrange(8)
        if how == 0:
            changed[at] ^= 1 << draw.randrange(8)
        elif how == 1:
            changed[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        elif how == 2:
            del changed[at : at + draw.choice((1, 2, 8, 64))]
        elif how == 3:
            changed[at:at] = draw.randbytes(draw.choice((1, 4, 16)))
        elif how == 4:
            changed[at:at] = changed[at : at + draw.choice((2, 16, 128))]
        elif how == 5:
            start = draw.randrange(len(other)) if other else 0
            changed[at : at + 32] = other[start : start + draw.choice((8, 64, 512))]
        elif how == 6:
            changed[at : at + 4] = draw.choice((b"\xff\xfe\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\0\0\0\0"))
        elif draw.random() < 0.3:
            del changed[at:]
    return bytes(changed)


def mutate_fields(draw: Random, data: bytes) -> bytes:
    """Delete, double, move or renumber a field somewhere in a protobuf message, with all lengths around kept right."""
    return _mutate_message(draw, data, depth=draw.randrange(6))


def _mutate_message(draw: Random, data: bytes, depth: int) -> bytes:
    try:
        spans = list(_spans(data, 0, len(data)))
    except ValueError:
        return mutate_bytes(draw, data, b"")
    if not spans:
        return data
    at = draw.randrange(len(spans))
    number, start, begin, end = spans[at]
    inside = [span for span in spans if data[span[1]] & 7 == 2 and span[3] > span[2]]
    if depth and inside:
        number, start, begin, end = draw.choice(inside)
        content = _mutate_message(draw, data[begin:end], depth - 1)
        return data[:start] + _encode(number << 3 | 2) + _encode(len(content)) + content + data[end:]
    field = data[start:end]
    how = draw.randrange(6)
    if how == 0:
        return data[:start] + data[end:]
    if how == 1:
        return data[:end] + field * draw.choice((1, 1, 2, 40)) + data[end:]
    if how == 2:
        target = draw.choice(spans)[1]
        return data[:start] + data[end:] + field if target > start else field + data[:start] + data[end:]
    if how == 3:
        # Another field of the same wire type: text where a message was, a message where text was.
        renumbered = _encode(draw.randrange(1, 30) << 3 | (data[start] & 7)) + data[begin:end]
        if data[start] & 7 == 2:
            renumbered = _encode(draw.randrange(1, 30) << 3 | 2) + _encode(end - begin) + data[begin:end]
        return data[:start] + renumbered + data[end:]
    if how == 4 and data[start] & 7 == 2:
        content = mutate_bytes(draw, data[begin:end], data)
        return data[:start] + _encode(number << 3 | 2) + _encode(len(content)) + content + data[end:]
    return data[:start] + _encode(number << 3) + _encode(draw.choice((0, 1, 2**31, 2**63, 2**64 - 1))) + data[end:]
