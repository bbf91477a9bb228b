"""Read a JSON report of this package: a regular file of limited size, as others may have written it."""

from __future__ import annotations

from pathlib import Path

from modelexport.errors import InputError

_MOST_BYTES = 2**30


def read_report_file(path: str | Path) -> bytes:
    """The content of the file.

    Raises:
        InputError: It cannot be read, is not a file, or is too large.
    """
    given: object = path  # untyped callers pass anything
    if not isinstance(given, str | Path):
        raise InputError(f"a report is given by the path of its JSON file, not as {type(given).__name__}")
    try:
        # Not a device or a pipe, which may have no end.
        if not Path(path).is_file() and Path(path).exists():
            raise InputError(f"{path} is not a file: give the JSON of a report")
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > _MOST_BYTES:
        raise InputError(f"{path} has more than {_MOST_BYTES:,} bytes, so it is not a report")
    return content
