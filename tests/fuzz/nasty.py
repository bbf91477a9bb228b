"""Values that break readers: names, numbers, locations."""

from __future__ import annotations

from random import Random

CANARY = b"CANARY-7f3a-do-not-read-me-"
NAMES = (
    "",
    " ",
    ".",
    "..",
    "a..b",
    ".a",
    "a.",
    "../x",
    "../../outside/canary.txt",
    "/etc/passwd",
    "C:\\x",
    "\\\\host\\share",
    "CON",
    "nul.txt",
    "x" * 300,
    "x.y" * 3000,
    "x." * 40_000,
    "a@1",
    "a@99999999999",
    "@",
    "a@" + "9" * 5000,
    "a@٣",
    "blk@1000000000",
    "blk@-1",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x9b31m",
    "a\nb\r\n",
    "nul\0byte",
    "\u202egnp.exe",
    "<script>alert(1)</script>",
    "</script>",
    "]]>",
    "[red]markup[/red]",
    "[/]",
    "__proto__",
    "constructor",
    "=cmd|' /C calc'!A0",
    "@SUM(1+1)",
    "+1",
    "-1",
    "\t=1",
    "\uff1d1",
    '"',
    "'",
    ",",
    ";",
    "|",
    "%s%n{0}{x}",
    "${x}",
    "`x`",
    "class:",
    "op:*",
    "a and not (",
    "*" * 60,
    "[" * 60,
    "é" * 200,
    "\U0001f600",
    "%2F..%2F",
    "#2",
    "If/then_branch/x",
    "/A/B.0@2",
    "/" * 200,
    "/A" * 500,
)
NUMBERS = (0, 1, -1, 2, 7, 255, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
LOCATIONS = (
    "../outside/canary.data",
    "sub/../../outside/canary.data",
    "{outside}/canary.data",
    "link.data",
    "hard.data",
    "pipe.data",
    "folder.data",
    "linked/canary.data",
    "weights.data\0",
    "",
    ".",
    "..",
    "missing.data",
    "file:///etc/passwd",
    "\\\\host\\x",
    "..\\outside\\canary.data",
    "C:/x",
    "x" * 5000,
    "model.onnx",
    "/dev/zero",
    "/proc/self/mem",
    "loop.data",
    "~/x",
)
EXTENTS = ("0", "1", "-1", "4", "99999999999999999999999", "9223372036854775807", "1e3", "0x10", " 4", "", "٣", "abc")


def name(draw: Random) -> str:
    """A name that no model should have; now and then one made of any characters."""
    if draw.random() < 0.1:
        return "".join(chr(draw.choice((draw.randrange(1, 0x100), draw.randrange(1, 0xD800)))) for _ in range(8))
    return draw.choice(NAMES)


def number(draw: Random) -> int:
    """A number on the edge of something."""
    return draw.choice(NUMBERS)
