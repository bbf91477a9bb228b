"""Read a profile of another tool: an untrusted file, up to a limit."""

from __future__ import annotations

from pathlib import Path

from modelexport.errors import FileFormatError

# These profiles have one entry for each layer.
_MOST_BYTES = 2**28


def read_limited(path: Path) -> bytes:
    """The content of a regular file.

    Raises:
        FileFormatError: It is larger than the limit, or cannot be read.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) > _MOST_BYTES:
        raise FileFormatError(f"{path} has more than {_MOST_BYTES:,} bytes: it is too large for a profile")
    return content
