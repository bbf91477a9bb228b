"""Attempts: which strategy was tried with which exporter, and why it failed."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class AttemptReport:
    """A strategy that was tried with an exporter; `error` is None for the one that succeeded."""

    strategy: str
    exporter: str
    reason: str
    error: str | None = None
