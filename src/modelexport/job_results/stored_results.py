"""What entries and records say of a result, checked when they are read: others may have written them."""

from __future__ import annotations

from pathlib import PurePosixPath, PureWindowsPath
from typing import Annotated, Any

import msgspec

# A sum of sizes stays within SQLite's integers.
Size = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class StoredFile(msgspec.Struct, frozen=True):
    """A file of an entry: its path in the folder of the entry, its size and its hash."""

    name: str
    size: Size
    sha256: str

    def __post_init__(self) -> None:
        check_inside(self.name)


def check_inside(path: str) -> None:
    """Refuse a path that could lead out of the folder that it is joined to.

    Raises:
        ValueError: It could.
    """
    for parsed in (PurePosixPath(path), PureWindowsPath(path)):
        if parsed.anchor or ".." in parsed.parts or "\0" in path:
            raise ValueError(f"the path {path[:80]!r} leads out of its folder")


class _Check(msgspec.Struct, frozen=True):
    outcome: str = ""
    reason: str = ""


class _Step(msgspec.Struct, frozen=True):
    passed: bool | None = None
    worst_excess: float | None = None


class _Attempt(msgspec.Struct, frozen=True):
    strategy: str
    exporter: str
    error: str | None = None
    variant: str = ""


class _Result(msgspec.Struct, frozen=True):
    """The fields of a result that are read again; there are others."""

    strategy: str = ""
    exporter: str = ""
    node_count: Size | None = None
    coverage: float | None = None
    wrong: bool = False
    check: _Check = _Check()
    steps: dict[str, _Step] = msgspec.field(default_factory=dict)
    attempts: tuple[_Attempt, ...] = ()
    imports: dict[str, str] | None = None


def check_result(result: dict[str, Any]) -> None:
    """Refuse a result whose fields have other types.

    Raises:
        msgspec.ValidationError: A field has another type.
    """
    msgspec.convert(result, _Result)
