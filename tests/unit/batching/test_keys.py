"""The key of a job changes with everything that its result depends on, and with nothing else."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modelexport import ModelSourceError
from modelexport.batching.file_hashes import FileHashes
from modelexport.batching.jobs import Job
from modelexport.batching.keys import installed_versions, key_of
from modelexport.batching.revisions import source_root


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "nets.py": "def make(): ...",
        "package/__init__.py": "",
        "package/inner/__init__.py": "",
        "package/inner/nets.py": "def make(): ...",
        "bert/config.json": "{}",
        "bert/model.safetensors": "weights",
        "inputs.npz": "arrays",
        "weights.bin": "1",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    yield tmp_path
    for name in ("package", "nets"):
        sys.modules.pop(name, None)


def key(model: str = "nets.py:make", versions: dict[str, str] | None = None, **fields: Any) -> str:
    return key_of(Job(model=model, name="x", **fields), FileHashes(None), versions or installed_versions())


@pytest.mark.parametrize(
    ("model", "file"),
    [
        ("nets.py:make", "nets.py"),
        ("package.inner.nets:make", "package/inner/nets.py"),
        ("package.inner:make", "package/inner/__init__.py"),
        ("bert", "bert/model.safetensors"),
        ("bert", "bert/config.json"),
    ],
)
def test_key_changes_with_the_files_that_a_model_is_made_from(folder: Path, model: str, file: str) -> None:
    before = key(model)
    assert key(model) == before
    (folder / file).write_text("changed", encoding="utf-8")
    assert key(model) != before


def test_key_changes_with_options_inputs_dependencies_and_versions(folder: Path) -> None:
    keys = [
        key(),
        key("nets.py:make(8)"),
        key(opset=18),
        key(seed=1),
        key(steps=("verify",)),
        key(input_shape=("x=1x2",)),
        key(inputs="inputs.npz"),
        key(depends=("weights.bin",)),
        key(versions={**installed_versions(), "torch": "0.0"}),
    ]
    (folder / "inputs.npz").write_text("other", encoding="utf-8")
    keys.append(key(inputs="inputs.npz"))
    (folder / "weights.bin").write_text("2", encoding="utf-8")
    keys.append(key(depends=("weights.bin",)))
    assert len(set(keys)) == len(keys)


def test_key_does_not_change_with_name_limits_or_the_place_of_a_folder(folder: Path) -> None:
    same = {
        key("bert"),
        key_of(Job(model="bert", name="other", timeout=5, memory=2), FileHashes(None), installed_versions()),
    }
    shutil.copytree(folder / "bert", folder / "elsewhere")
    assert {*same, key("elsewhere")} == same


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("missing.py:make", "there is no file missing.py"),
        ("no_such_package.models:make", "there is no Python module 'no_such_package'"),
        ("package.other:make", "there is no Python module 'package.other'"),
        ("./missing", "there is no file or folder './missing'"),
        ("package", "has no config.json"),
        ("diffusers:bert#unet", "config.json"),
    ],
)
def test_missing_model_is_an_error(folder: Path, model: str, words: str) -> None:
    with pytest.raises(ModelSourceError) as caught:
        key(model)
    assert words in str(caught.value)


def test_missing_input_or_dependency_is_an_error(folder: Path) -> None:
    for fields in ({"inputs": "none.npz"}, {"depends": ("none*",)}, {"input_image": ("none.png",)}):
        with pytest.raises(ModelSourceError, match="none"):
            key(**fields)


def test_hub_model_that_is_neither_on_the_hub_nor_in_the_cache_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelSourceError, match="not in the cache of the HuggingFace hub, and HF_HUB_OFFLINE is set"):
        key("nobody/no-such-model")


def test_editable_install_with_a_finder_of_its_own_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "package").rename(folder / "elsewhere" / "package")
    place = folder / "elsewhere" / "package" / "__init__.py"

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> Any:
            found = importlib.util.spec_from_file_location(name, place)
            return found if name == "package" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert key("package.inner.nets:make")
    assert source_root("package.inner.nets:make") == folder / "elsewhere"


def test_distribution_from_a_folder_is_known_by_its_files_and_others_by_their_version(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    about = folder / "some_layers-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: some-layers\nVersion: 1.0\n", encoding="utf-8")
    found = []
    for files in ("some_layers.py,sha256=a,5", "some_layers.py,sha256=b,5"):
        (about / "RECORD").write_text(files, encoding="utf-8")
        found.append(FileHashes(None).of_imports(["some-layers=="], folder)["some-layers=="])
    assert found == ["1.0", "1.0"]
    (about / "direct_url.json").write_text('{"url": "file:///layers", "dir_info": {}}', encoding="utf-8")
    installed = FileHashes(None).of_imports(["some-layers=="], folder)
    (about / "RECORD").write_text("some_layers.py,sha256=c,5", encoding="utf-8")
    assert FileHashes(None).of_imports(["some-layers=="], folder) != installed


def test_factory_is_not_imported(folder: Path) -> None:
    (folder / "package" / "__init__.py").write_text("raise SystemExit", encoding="utf-8")
    assert key("package.inner.nets:make")


def test_hash_of_a_large_file_is_read_once_and_again_after_a_change(tmp_path: Path) -> None:
    file, database = tmp_path / "weights", tmp_path / "hashes.sqlite"
    file.write_bytes(b"0" * 2**20)
    os.utime(file, ns=(10**18, 10**18))
    hashes = FileHashes(database)
    first = hashes.of(file)
    hashes.close()
    # The same size and time: another content would not be noticed.
    file.write_bytes(b"1" * 2**20)
    os.utime(file, ns=(10**18, 10**18))
    assert FileHashes(database).of(file) == first
    os.utime(file, ns=(10**18, 2 * 10**18))
    assert FileHashes(database).of(file) != first
