"""Entries on any storage: complete or absent, never replaced, and checked when they are read."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from modelexport import InputError, StorageError
from modelexport.job_results import Entry, EntryStore, Location, redacted, secret_values

KEY = "ab" * 32


@pytest.fixture(params=["folder", "memory"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Location]:
    if request.param == "folder":
        yield Location(tmp_path / "store")
        return
    found = Location(f"memory://{tmp_path.name}/store")
    yield found
    found.remove("")


def job_files(folder: Path, **contents: str) -> Path:
    folder.mkdir()
    for name, text in ({"model.onnx": "graph", "model-1.onnx.data": "weights", "sub/x.onnx": "x"} | contents).items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_entry_is_what_was_stored(location: Location, tmp_path: Path) -> None:
    store = EntryStore(location, named=True)
    assert store.get(KEY) is None
    assert store.list_keys() == set()
    entry = store.put(KEY, "net", job_files(tmp_path / "a"), {"strategy": "fx"})
    assert store.list_keys() == {KEY}
    assert store.get(KEY) == entry
    store.fetch(entry, tmp_path / "b")
    assert {path.name: path.read_text() for path in (tmp_path / "b").rglob("*.*")} == {
        "model.onnx": "graph",
        "model-1.onnx.data": "weights",
        "x.onnx": "x",
    }
    assert entry.folder.startswith("net/")


@pytest.mark.parametrize("name", ["../evil", "/{folder}/evil", "sub/../../evil", "..\\evil", "C:\\evil"])
def test_file_of_an_entry_is_never_written_outside_of_its_folder(name: str, tmp_path: Path) -> None:
    store = EntryStore(Location(tmp_path / "store"), named=False)
    entry = store.put(KEY, "net", job_files(tmp_path / "a"), {})
    content = json.loads((tmp_path / "store" / "entries" / f"{KEY}.json").read_bytes())
    content["files"][0]["name"] = name.format(folder=tmp_path.relative_to("/"))
    evil = tmp_path / "store" / entry.folder / content["files"][0]["name"]
    evil.parent.mkdir(parents=True, exist_ok=True)
    evil.write_bytes((tmp_path / "store" / entry.folder / entry.files[0].name).read_bytes())
    before = sorted(tmp_path.rglob("*"))
    (tmp_path / "store" / "entries" / f"{KEY}.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(StorageError, match=r"is damaged .*leads out of its folder"):
        store.fetch(cast("Entry", store.get(KEY)), tmp_path / "c")
    assert sorted(tmp_path.rglob("*")) == before


def test_first_writer_wins_and_both_sets_of_files_are_complete(location: Location, tmp_path: Path) -> None:
    store = EntryStore(location, named=False)
    first = store.put(KEY, "net", job_files(tmp_path / "a"), {"n": 1})
    second = store.put(KEY, "net", job_files(tmp_path / "b", **{"model.onnx": "other"}), {"n": 2})
    assert second == first == store.get(KEY)
    store.fetch(first, tmp_path / "c")
    assert (tmp_path / "c" / "model.onnx").read_text() == "graph"
    assert [size for size, _ in store.unused_folders().values()] == [len("otherweightsx")]


def test_many_writers_at_once_leave_one_complete_entry(location: Location, tmp_path: Path) -> None:
    stores = [EntryStore(location, named=True) for _ in range(8)]
    folders = [job_files(tmp_path / f"w{n}", **{"model.onnx": f"graph {n}"}) for n in range(8)]
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(stores[n].put(KEY, "net", folders[n], {"n": n})))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({entry.digest for entry in found}) == 1
    stores[0].fetch(found[0], tmp_path / "read")
    assert (tmp_path / "read" / "model.onnx").read_text() == f"graph {found[0].result['n']}"


def test_upload_that_breaks_off_at_any_step_leaves_no_entry_and_keeps_the_old_one(
    location: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = EntryStore(location, named=True)
    old = store.put("0" * 64, "net", job_files(tmp_path / "old"), {})
    new = job_files(tmp_path / "new", **{"model.onnx": "new graph"})
    steps: list[str] = []
    for name in ("upload", "write"):
        original = getattr(Location, name)

        def broken(self: Location, *args: Any, _original: Any = original, **options: Any) -> Any:
            if len(steps) == limit:
                raise StorageError("broken off")
            steps.append(str(args[1] if isinstance(args[0], Path) else args[0]))
            return _original(self, *args, **options)

        monkeypatch.setattr(Location, name, broken)
    for limit in range(4):
        steps.clear()
        with pytest.raises(StorageError, match="broken off"):
            store.put(KEY, "net", new, {})
        assert store.get(KEY) is None
        store.fetch(old, tmp_path / f"read{limit}")
        assert (tmp_path / f"read{limit}" / "model.onnx").read_text() == "graph"
    limit = 99
    steps.clear()
    store.put(KEY, "net", new, {})
    kinds = [Path(name).suffix for name in steps]
    assert kinds == [".data", ".onnx", ".onnx", ".json"]


def test_damaged_file_is_noticed(location: Location, tmp_path: Path) -> None:
    store = EntryStore(location, named=True)
    entry = store.put(KEY, "net", job_files(tmp_path / "a"), {})
    location.write(f"{entry.folder}/model.onnx", b"graqh")
    with pytest.raises(StorageError, match="damaged"):
        store.fetch(entry, tmp_path / "b")
    location.write(f"entries/{KEY}.json", b"{")
    with pytest.raises(StorageError, match="damaged"):
        store.get(KEY)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nothing://x", "Protocol not known: nothing"),
        ("s3://bucket", "no driver for s3:// is installed"),
        ("/proc/no-such/place", "Cannot write /proc/no-such/place"),
    ],
)
def test_place_that_cannot_be_used_is_one_error(url: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    with pytest.raises(InputError, match=words):
        Location(url).check_writable()


def test_temporary_files_of_killed_writers_are_removed_after_a_day(tmp_path: Path) -> None:
    files = [tmp_path / "records" / f".modelexport-{name}.tmp" for name in ("old", "new")]
    files[0].parent.mkdir()
    for file in files:
        file.touch()
    os.utime(files[0], (0, 0))
    Location(tmp_path).remove_leftovers()
    assert [file.exists() for file in files] == [False, True]
    assert Location(tmp_path).sizes() == {}


def test_password_in_an_url_is_not_shown() -> None:
    location = Location("memory://name:secretword@host/x")
    assert "secretword" not in location.url
    assert "secretword" not in location.joined("y")


def test_secrets_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "abcdefghijkl")
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    known = secret_values({"key": "AKIDEXAMPLE", "client_kwargs": {"aws_secret": "zyxwvuts", "region": "eu-west-1"}})
    text = json.dumps(
        {"a": "abcdefghijkl hf_0123456789 AKIDEXAMPLE zyxwvuts eu-west-1", "b": "ftp://me:pw@host/x?Signature=xyz&a=1"}
    )
    shown = redacted(text, known)
    assert not any(word in shown for word in ("abcdefghijkl", "hf_0123", "AKID", "zyxw", "me:pw", "xyz"))
    assert "eu-west-1" in shown
    assert json.loads(shown)
