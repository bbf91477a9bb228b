"""The sizes of a dynamic axis for which a graph is valid."""

from __future__ import annotations

import msgspec


class SizeRange(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sizes of a dynamic axis for which a graph is valid, as torch knows them: ``step * k + offset``.

    Attributes:
        min: The smallest size; None where torch knows no limit.
        max: The largest size; None where torch knows no limit.
        step: The distance between two sizes.
        offset: What is left of each size when it is divided by `step`.
        place: The line of the model that limits it, as in ``net.py:12``; empty where torch does not know it.
    """

    min: int | None = None
    max: int | None = None
    step: int = 1
    offset: int = 0
    place: str = ""

    def __contains__(self, size: int) -> bool:
        is_step = self.step < 1 or size % self.step == self.offset
        return is_step and (self.min or 1) <= size and (self.max is None or size <= self.max)

    def __str__(self) -> str:
        least, most = ("" if bound is None else str(bound) for bound in (self.min, self.max))
        multiple = f" in steps of {self.step}" if self.step > 1 else ""
        return f"{least}…{most}{multiple}{f', {self.place}' if self.place else ''}"
