"""Folders with an old set of files, for tests of writing."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.artifact_sets import LONG_AGO, export


@pytest.fixture
def new_folder(tmp_path: Path) -> Callable[[], Path]:
    """Makes folders that hold the set ``old`` and a file of another program."""
    (tmp_path / "template").mkdir()
    (tmp_path / "template" / "model.onnx.data").write_bytes(b"foreign")
    for path in export(tmp_path / "template" / "model.onnx", "old"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    count = itertools.count()

    def make() -> Path:
        return Path(shutil.copytree(tmp_path / "template", tmp_path / f"folder{next(count)}"))

    return make
