"""The catalogue: the same rows as the records, whatever happened to its file, and what changed between two states."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from modelexport import InputError, StorageError, compare_catalogs, read_catalog
from modelexport.job_results.index_page import index_page


def state(output: Path) -> dict[str, str]:
    return {row["job"]: row["failure"] or row["status"] for row in read_catalog(output).latest()}


def test_latest_attempt_of_each_job_is_what_counts(output: Path) -> None:
    catalog = read_catalog(output)
    assert len(catalog.rows()) == 7
    assert state(output) == {"<script>d": "succeeded", "a": "crashed", "b": "succeeded", "c": "findings"}
    row = next(row for row in catalog.latest() if row["job"] == "c")
    assert (row["strategy"], row["tries"], row["verified"], row["worst_excess"]) == ("htp", 1, 0, 3.5)
    assert (row["bytes"], row["torch"]) == (13_000, "2.13.0+cpu")
    assert catalog.record(row).result["strategy"] == "htp"


def test_table_is_a_sqlite_file_that_other_tools_read(output: Path) -> None:
    path = read_catalog(output).path
    assert path == output / "catalog.sqlite"
    with sqlite3.connect(path) as database:
        (count,) = database.execute("select count(*) from records where torch like '2.13%'").fetchone()
    database.close()
    assert count == 4


def test_only_new_records_are_read_and_removed_ones_go(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = state(output)
    record = next((output / "records").glob("*crashed*"))
    record.unlink()
    monkeypatch.setattr("modelexport.job_results.catalogue.read_record", None)
    assert state(output) == {**before, "a": "succeeded"}


@pytest.mark.parametrize("content", [b"", b"this is not a database" * 100])
def test_damaged_table_is_made_again(output: Path, content: bytes) -> None:
    before = state(output)
    (output / "catalog.sqlite").write_bytes(content)
    assert state(output) == before


def test_table_of_another_version_is_made_again(output: Path) -> None:
    before = state(output)
    with sqlite3.connect(output / "catalog.sqlite") as database:
        database.execute("drop table records")
        database.execute("create table records (id text)")
        database.execute("pragma user_version = 99")
    database.close()
    assert state(output) == before


@pytest.mark.parametrize(
    "commands",
    [
        ("drop table records", "create table records (a)"),
        ("drop table records", "create view records as select 1"),
        ("update records set seconds = 'long'",),
        ("update records set message = x'00ff'",),
        ("create trigger t after insert on records begin delete from records; end",),
    ],
)
def test_table_that_another_program_changed_is_made_again(output: Path, commands: tuple[str, ...]) -> None:
    before = read_catalog(output).rows()
    with sqlite3.connect(output / "catalog.sqlite") as database:
        for command in commands:
            database.execute(command)
    database.close()
    assert read_catalog(output).rows() == before


def test_row_without_its_record_is_one_error(output: Path) -> None:
    read_catalog(output)
    with sqlite3.connect(output / "catalog.sqlite") as database:
        database.execute("update records set record = '{'")
    database.close()
    catalog = read_catalog(output)
    with pytest.raises(StorageError, match="delete the file, it is made again"):
        catalog.record(catalog.rows()[0])


def test_link_in_place_of_the_table_is_not_followed(output: Path, tmp_path: Path) -> None:
    before = state(output)
    (output / "catalog.sqlite").unlink()
    (tmp_path / "other").write_bytes(b"x")
    (output / "catalog.sqlite").symlink_to(tmp_path / "other")
    assert state(output) == before
    assert (tmp_path / "other").read_bytes() == b"x"


@pytest.mark.parametrize(
    "change",
    [
        {"result": {"steps": "x"}},
        {"result": {"steps": {"verify": "x"}}},
        {"result": {"attempts": 5}},
        {"result": {"check": "x"}},
        {"result": {"node_count": [1]}},
        {"files": [{"name": "model.onnx", "size": 2**70, "sha256": ""}]},
        {"files": [{"name": "../../evil", "size": 1, "sha256": ""}]},
        {"folder": "/etc"},
        {"peak_memory_bytes": 2**70},
    ],
)
def test_record_with_other_content_is_named_and_the_others_are_shown(output: Path, change: dict[str, Any]) -> None:
    path = next((output / "records").glob("*crashed*"))
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **change}), encoding="utf-8")
    catalog = read_catalog(output)
    assert len(catalog.rows()) == 6
    assert "is not a record" in catalog.problems[0]


def test_damaged_record_is_named_and_the_others_are_shown(output: Path) -> None:
    next((output / "records").glob("*crashed*")).write_bytes(b'{"id":')
    catalog = read_catalog(output)
    assert len(catalog.rows()) == 6
    assert "crashed" in catalog.problems[0]
    assert "is not a record" in catalog.problems[0]


def test_output_without_records_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no records"):
        read_catalog(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_changes_between_versions_dates_and_outputs(output: Path) -> None:
    catalog = read_catalog(output)
    old, new = catalog.latest(where={"torch": "2.12.0"}), catalog.latest(where={"torch": "2.13.0"})
    changes = compare_catalogs(old, new)
    assert [(change.kind, change.job) for change in changes.changes] == [
        ("broken", "a"),
        ("changed", "b"),
        ("changed", "c"),
        ("added", "<script>d"),
    ]
    assert changes.changes[1].before == {"digest": "1"}
    assert compare_catalogs(catalog.latest(until="2026-11-03"), new) == changes
    assert compare_catalogs(catalog.latest(until="2026-11-13"), new).counts == {"added": 1}
    assert not compare_catalogs(new, new).changes


def test_index_page_escapes_names_and_has_no_script(output: Path) -> None:
    page = index_page(read_catalog(output))
    assert "<script" not in page
    assert "&lt;script&gt;d" in page
    assert "SIGSEGV &lt;b&gt;" in page
    assert 'href="b/0/model.onnx"' in page
    assert 'href="%3Cscript%3Ed/0/model.onnx"' in page
    assert "default-src 'none'" in page


def test_to_pandas_needs_pandas(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        read_catalog(output).to_pandas()
