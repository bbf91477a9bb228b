"""Attempts: what was tried, why it failed, how long it took."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class AttemptReport:
    """A strategy that was tried with an exporter; `error` is None for the one that served."""

    strategy: str
    exporter: str
    reason: str
    error: str | None = None
