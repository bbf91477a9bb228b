"""An output with records of several jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.batch_records import write_output


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return write_output(tmp_path / "out")
