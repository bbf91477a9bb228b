"""A reference as a path, whatever characters it has."""

from __future__ import annotations

from pathlib import Path


def existing_path(reference: str) -> Path | None:
    """The file or folder that a reference names, or None where it names none, or nothing that could be one."""
    try:
        path = Path(reference).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):
        # Too long, or with a character that no name has, or in the home of a user that there is not.
        return None
