"""The command line within the process of the tests."""

from __future__ import annotations

import dataclasses
import re

PROGRESS_LINE = re.compile(r"  (\d)/\d (\w+) +\d+\.\d\d s(  .+)?")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it printed."""

    code: int
    stdout: str
    stderr: str

    @property
    def error(self) -> str:
        """The one error line; the other lines of stderr are progress."""
        *before, last = self.stderr.splitlines()
        assert last.startswith("error: "), self.stderr
        assert all(PROGRESS_LINE.fullmatch(line) for line in before), self.stderr
        return last
