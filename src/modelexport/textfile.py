"""One text file, written whole or not at all: reports and dumps that go where the user says."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from modelexport.errors import InputError, StorageError


def check_text_target(path: Path) -> Path:
    """The absolute path of a file that can be written; found out before any work is done.

    Raises:
        InputError: The folder is missing or cannot be written, or a folder stands in the file's place.
    """
    target = path.absolute()
    if target.is_dir():
        raise InputError(f"Cannot write {path}: it is a folder. Name a file in it.")
    if not target.parent.is_dir():
        raise InputError(f"Cannot write {path}: no folder {path.parent}. Create it first.")
    probe = _temporary(target)
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror or error}. Choose another path.") from error
    return target


def write_text(target: Path, text: str) -> None:
    """Write a checked target.

    Raises:
        StorageError: It could not be written; what stood there before is untouched.
    """
    temporary = _temporary(target)
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        raise StorageError(
            f"Cannot write {target}: {error.strerror or error}. What stood there is untouched."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _temporary(target: Path) -> Path:
    return target.with_name(f".modelexport-{secrets.token_hex(8)}.tmp")
