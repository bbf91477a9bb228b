"""When the place to write to fails, the older files are whole, and the model and torch as they were."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.export_outcomes import Outcome, check_outcome
from tests.support.meddlers import example, net
from tests.support.untouched import files

from modelexport.errors import InputError, StorageError
from modelexport.exporting.export import export_model
from modelexport.exporting.result import ProgressEvent


def mount(place: Path, *options: str) -> None:
    done = subprocess.run(["mount", *options, str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.strip()}")


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of its own with the older export and room for little more."""
    old = {name: content for name, content in files(folder).items() if content is not None}
    mount(folder, "-t", "tmpfs", "-o", "size=192k", "tmpfs")
    try:
        for name, content in old.items():
            (folder / name).write_bytes(content)
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("external_data", [False, True], ids=["inline", "external"])
def test_everything_is_as_before_when_the_disk_is_full(external_data: bool, small_disk: Path) -> None:
    outcome = Outcome(error=StorageError, options={"external_data": external_data})
    check_outcome(outcome, small_disk, width=50_000)


def test_everything_is_as_before_when_the_place_is_read_only(small_disk: Path) -> None:
    mount(small_disk, "-o", "remount,ro")
    check_outcome(Outcome(error=InputError), small_disk)


def test_everything_is_as_before_when_the_place_becomes_read_only_before_writing(small_disk: Path) -> None:
    def lock(event: ProgressEvent) -> None:
        if (event.step, event.finished) == ("write", False):
            mount(small_disk, "-o", "remount,ro")

    check_outcome(Outcome(error=StorageError, options={"progress": lock}), small_disk)


def test_older_artifact_is_intact_when_what_was_traced_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    artifact = files(folder)

    def take_away(event: ProgressEvent) -> None:
        if (event.step, event.finished) == ("write", False):
            dumps.rmdir()

    with pytest.raises(StorageError):
        export_model(
            net(),
            example(),
            folder / "model.onnx",
            fx_graph_path=dumps / "graph.txt",
            progress=take_away,
            overwrite=True,
        )
    assert files(folder) == artifact


def test_older_dump_is_intact_when_the_artifact_cannot_be_written(small_disk: Path, tmp_path: Path) -> None:
    dump = tmp_path / "graph.txt"
    dump.write_text("an older graph")
    with pytest.raises(StorageError):
        export_model(net(width=50_000), example(), small_disk / "model.onnx", fx_graph_path=dump, overwrite=True)
    assert dump.read_text() == "an older graph"
