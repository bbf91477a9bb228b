"""Read a profile of another tool: an untrusted file, up to a limit."""

from __future__ import annotations

from pathlib import Path

from modelexport.errors import FileFormatError, InputError

# A profile of onnxruntime has at most a million events; other profiles have one entry for each layer.
MOST_BYTES = 2**28
MOST_EVENT_BYTES = 2**30


def check_size(path: Path, most: int) -> None:
    """Check that a file can be read whole.

    Raises:
        InputError: It does not exist, or is not a regular file.
        FileFormatError: It is larger than the limit.
    """
    if not path.is_file():
        raise InputError(f"{path} is not a file: give the path of a profile")
    if path.stat().st_size > most:
        raise FileFormatError(f"{path} has more than {most:,} bytes: it is too large for a profile")


def read_limited(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file.

    Raises:
        InputError: It does not exist, or is not a regular file.
        FileFormatError: It is larger than the limit, or cannot be read.
    """
    check_size(path, most)
    try:
        with path.open("rb") as stream:
            return stream.read(most)
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror or error}") from error
