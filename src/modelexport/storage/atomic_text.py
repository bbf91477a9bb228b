"""Writes one text file atomically: reports and manifests."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from modelexport.errors import InputError, StorageError


def check_text_target(path: Path, *, force: bool, taken: Iterable[Path] = ()) -> Path:
    """Check, before any work is done, that a file can be written; returns its absolute path.

    Args:
        path: The file to write.
        force: Whether a file that exists may be replaced.
        taken: Files that the same run writes, which this one must not replace.

    Raises:
        InputError: The folder is missing or not writable, or the path is taken.
    """
    target = path.parent.resolve() / path.name
    if target in {other.parent.resolve() / other.name for other in taken}:
        raise InputError(f"Cannot write {path}: another file of this export goes there. Choose another name.")
    if target.exists() and not force:
        raise InputError(
            f"Cannot write {path}: it exists. Choose another name, or replace it: --force on the command line, "
            "overwrite=True in Python."
        )
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
        StorageError: It could not be written; the previous file is unchanged.
    """
    with staged_text(target, text):
        pass


@contextlib.contextmanager
def staged_text(target: Path, text: str) -> Iterator[None]:
    """Write a checked target to a temporary file, and move it into place when the context ends without an error.

    Raises:
        StorageError: It could not be written; the previous file is unchanged.
    """
    temporary = _temporary(target)
    try:
        with _reporting(target):
            temporary.write_text(text, encoding="utf-8")
        yield
        with _reporting(target):
            temporary.replace(target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _reporting(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"Cannot write {target}: {error.strerror or error}. The previous file is unchanged."
        ) from error


def _temporary(target: Path) -> Path:
    return target.with_name(f".modelexport-{secrets.token_hex(8)}.tmp")
