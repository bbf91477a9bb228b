"""Interpret a reference as a path, whatever characters it has."""

from __future__ import annotations

from pathlib import Path


def existing_path(reference: str) -> Path | None:
    """The file or folder that a reference names; None if it does not exist or is not a valid path."""
    try:
        path = Path(reference).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):
        # Too long, with an invalid character, or in the home folder of an unknown user.
        return None
