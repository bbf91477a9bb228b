"""A saved BERT, and the trace of code that must not run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import tiny_models


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save_bert(tmp_path_factory.mktemp("tiny") / "bert", tokenizer=True)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """What a trap writes."""
    return tmp_path / "marker"
