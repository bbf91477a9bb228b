"""What the tests of what is left behind share: a folder with an older export, and torch as imported."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.support.meddlers import example, net
from tests.support.untouched import files

from modelexport.exporting.export import export_model

# Wide enough for weights that are too large to be inline where weights go to a file of their own.
WIDTH = 64


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an export whose weights are in a file of their own."""
    folder = tmp_path_factory.mktemp("reference")
    export_model(net(meddling=False, width=WIDTH), example(), folder / "model.onnx", external_data=True)
    assert len(files(folder)) == 3
    return folder


@pytest.fixture
def folder(tmp_path: Path, reference: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that already holds an export, beside an empty one that is the process's own."""
    shutil.copytree(reference, tmp_path / "out")
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path / "out"


@pytest.fixture(autouse=True)
def _modes_as_imported() -> Iterator[None]:
    """What one test finds left behind is not found again by the next."""
    yield
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_cache_enabled(True)
