"""Results of earlier sweeps: which count as done, which exports are known, and what starts first."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.sweep import _is_done
from benchmarks.sweep_records import (
    current_setup,
    keep_records,
    known_exports,
    longest_first,
    read_records,
    still_valid,
)
from benchmarks.sweep_steps import (
    Built,
    Limits,
    OutOfTime,
    _limited_time,
    _same_bytes,
    _still_known,
    configuration_of,
    export_ours,
    export_plainly,
)
from torch import nn

SETUP = {"versions": {"torch": "2"}, "code": "a", "date": "2026-01-02"}


def record(name: str = "some:model", **more: Any) -> dict[str, Any]:
    return {"name": name, "setup": SETUP, "limit": 60, "configuration": "c", **more}


def test_setup_has_versions_commit_and_a_digest_of_the_code() -> None:
    setup = current_setup("abc")
    assert setup["versions"]["torch"] == torch.__version__
    assert setup["commit"] == "abc"
    assert setup["code"] == current_setup()["code"]


def test_results_of_other_code_or_libraries_are_not_done() -> None:
    records = [record("a"), record("b", setup={**SETUP, "code": "b"}), record("c", setup={**SETUP, "versions": {}})]
    assert set(still_valid(records, SETUP, mixed=False)) == {"a"}
    assert set(still_valid(records, SETUP, mixed=True)) == {"a", "b"}


def test_last_result_counts_and_an_incomplete_line_does_not(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"name": "a", "cpu": 1}\n{"name": "a", "cpu": 2}\n{"name": "a", "cp')
    assert [found["cpu"] for found in read_records(path)] == [1, 2]


def test_kept_results_are_read_again_without_tracebacks(tmp_path: Path) -> None:
    plain = {"error": "ValueError: no", "cpu": 1.5}
    records = [record("b", plain={**plain, "trace": "a long text"}), record("a")]
    kept = [tmp_path / "one.jsonl.gz", tmp_path / "other.jsonl.gz"]
    for path in kept:
        keep_records(records, path)
    assert list(read_records(kept[0])) == [record("a"), record("b", plain=plain)]
    assert kept[0].read_bytes() == kept[1].read_bytes()


def test_digest_of_the_code_covers_what_the_sweep_runs_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    unchanged = current_setup("")["code"]
    read = Path.read_bytes

    def changed(module: str) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * path.match(f"modelexport/{module}.py"))
            return current_setup("")["code"]

    for module in ("capture/fx/dynamo_exporter", "sources/inputs/synthesis/search", "ort/worker", "errors"):
        assert changed(module) != unchanged, module
    for module in ("cli/export", "viewing/file_view", "profiling/profiler", "batching/coordinator"):
        assert changed(module) == unchanged, module


def test_exports_of_others_are_known_whatever_our_code() -> None:
    plain = {"value": {"bytes": 1}}
    known = known_exports([record(plain=plain, setup={**SETUP, "code": "other"})], SETUP)
    assert known["some:model"]["c"]["plain"] == {**plain, "measured": "2026-01-02", "limit": 60}
    assert not known_exports([record(plain=plain)], {**SETUP, "versions": {"torch": "3"}})


def test_day_of_a_known_export_stays_that_of_its_run() -> None:
    once = known_exports([record(plain={"value": {}})], SETUP)["some:model"]["c"]["plain"]
    later = record(plain=once, setup={**SETUP, "date": "2026-02-03"}, limit=240)
    assert known_exports([later], SETUP)["some:model"]["c"]["plain"] == once


def test_export_that_ran_out_of_time_is_tried_again_with_more() -> None:
    outcome = {"error": "TimeLimit: timed out after 60 s of CPU time", "limit": 60}
    assert _still_known(outcome, Limits(60))
    assert not _still_known(outcome, Limits(120))
    assert _still_known({"error": "ValueError: no", "limit": 60}, Limits(120))


def test_longest_model_starts_first_after_those_never_measured() -> None:
    records = [{"name": "a", "cpu": 90}, {"name": "a", "cpu": 3}, {"name": "b", "cpu": 7}]
    assert longest_first(["a", "new", "b"], records) == ["new", "b", "a"]


@pytest.mark.parametrize(
    ("found", "measure", "done"),
    [
        (None, "ours", False),
        ({"built": {"error": "no"}}, "all", True),
        ({"built": {}, "forward": {}, "ours": {"value": {}}}, "ours", True),
        ({"built": {}, "forward": {}, "ours": {"value": {}}}, "all", False),
        ({"built": {}, "forward": {}, "ours": {"error": ""}, "torchscript": {"error": ""}}, "all", True),
    ],
)
def test_result_of_ours_alone_is_not_a_whole_result(found: dict[str, Any] | None, measure: str, done: bool) -> None:
    assert _is_done(found, measure) is done


def test_file_of_ours_is_compared_with_the_digest_of_an_earlier_export(tmp_path: Path) -> None:
    built = Built(nn.Sequential(nn.Linear(3, 2)).eval(), (torch.ones(1, 3),), {})
    plain = {"value": export_plainly(built, tmp_path / "plain.onnx"), "measured": "2026-01-02"}
    ours = {"value": export_ours(built, tmp_path / "ours.onnx")}
    (tmp_path / "plain.onnx").unlink()
    assert _same_bytes(built, tmp_path, {"plain": plain, "ours": ours}) is True
    # Exported again, because the digest of an earlier process is no proof.
    stale = {**plain, "value": {"digest": "0"}}
    assert _same_bytes(built, tmp_path, {"plain": stale, "ours": ours}) is True
    assert _same_bytes(built, tmp_path, {"plain": {"value": {"digest": "0"}}, "ours": ours}) is False
    assert _same_bytes(built, tmp_path, {"ours": ours}) is None


def test_configuration_of_a_model_changes_with_its_inputs() -> None:
    model = nn.Linear(3, 2)
    one, same, other = (configuration_of(Built(model, (torch.ones(n, 3),), {})) for n in (1, 1, 2))
    assert one == same != other


def test_time_limit_ends_a_search_that_takes_exceptions_for_answers() -> None:
    def search() -> None:
        while True:
            with contextlib.suppress(Exception):
                sum(range(1000))

    with pytest.raises(OutOfTime), _limited_time(0.05):
        search()
