"""What the tests of the command line share: the command, and an export of the built-in model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.command import Outcome
from tests.support.command_process import ROOT, Exported, in_process


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests of the built-in model go to one worker, which exports it once."""
    if "bert" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.xdist_group("builtin"))


@pytest.fixture
def command(command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """As everywhere, in the folder of the project."""
    monkeypatch.chdir(ROOT)
    return command


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    folder = tmp_path_factory.mktemp("bert")
    extras = ("--report", folder / "report.md", "--fx-graph", folder / "graph.txt", "--format", "json")
    return Exported(folder, in_process("export", "builtin:bert-tiny", folder / "bert.onnx", *extras))
