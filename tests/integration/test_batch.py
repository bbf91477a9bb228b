"""`modelexport batch` as users run it: many jobs, failures of every class, resuming, interrupts, two coordinators."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.support.batch_models import MARKER_VARIABLE
from tests.support.command_process import INTERRUPTIBLE, ROOT, files_in, start

import modelexport
from modelexport.job_results import EntryStore, Location, Record, read_record, record_names

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("batch")]

MODELS = f"{ROOT}/tests/support/batch_models.py"
STEPS = ["view", "verify", "validate", "extract:lin"]
SECRET = "thisisverysecret"


def records_of(output: Path) -> dict[str, list[Record]]:
    location = Location(output)
    found: dict[str, list[Record]] = {}
    for name in record_names(location):
        record = read_record(location, name.id)
        found.setdefault(record.job, []).append(record)
    return found


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, modelexport.BatchReport, Any]:
    """One batch with a job of each kind."""
    folder = tmp_path_factory.mktemp("batch")
    jobs = [
        {"model": f"{MODELS}:make(4)", "name": "good", "check": "run", "steps": STEPS},
        {"model": f"{MODELS}:make(5)", "name": "other"},
        {"model": f"{MODELS}:killed_once", "name": "killed"},
        {"model": f"{MODELS}:crash", "name": "crash"},
        {"model": f"{MODELS}:fails", "name": "fails"},
        {"model": f"{MODELS}:unexportable", "name": "unexportable"},
        {"model": f"{MODELS}:forever", "name": "forever", "timeout": 2},
        {"model": f"{MODELS}:eat_memory", "name": "eater", "memory": 2},
        {"model": f"{MODELS}:prints_secrets", "name": "secrets"},
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARKER_VARIABLE, str(folder / "marker"))
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("XDG_CACHE_HOME", str(folder / "user"))
        report = modelexport.batch(jobs, folder / "out", cache=folder / "cache", workers=2)
    return folder, report, jobs


def test_every_job_is_accounted_for_with_the_class_of_its_failure(outcome: Any) -> None:
    _, report, jobs = outcome
    assert [job.job for job in report.jobs] == [job["name"] for job in jobs]
    assert {job.job: (job.status, job.failure) for job in report.jobs} == {
        "good": ("succeeded", ""),
        "other": ("succeeded", ""),
        "killed": ("succeeded", ""),
        "crash": ("failed", "crashed"),
        "fails": ("failed", "bad_input"),
        "unexportable": ("failed", "not_exportable"),
        "forever": ("failed", "timed_out"),
        "eater": ("failed", "out_of_memory"),
        "secrets": ("failed", "bad_input"),
    }
    assert not report.passed
    messages = {job.job: job.message for job in report.jobs}
    assert messages["crash"] == "SIGSEGV"
    assert messages["forever"] == "timed out after 2 s"
    assert "the limit is 2 GiB" in messages["eater"]
    assert "torch" not in vars(modelexport.batching)


def test_transient_failure_is_an_attempt_of_its_own_and_tried_again(outcome: Any) -> None:
    folder, _, _ = outcome
    first, second = records_of(folder / "out")["killed"]
    assert (first.failure, first.attempt, second.status, second.attempt) == ("killed", 1, "succeeded", 2)
    assert all(len(records) == 1 for job, records in records_of(folder / "out").items() if job != "killed")


def test_record_has_what_there_is_to_know_of_an_export(outcome: Any) -> None:
    folder, _, _ = outcome
    (record,) = records_of(folder / "out")["good"]
    assert record.result["strategy"] == "fx"
    assert record.result["coverage"] == 1.0
    assert record.result["check"]["outcome"] == "equal"
    assert record.result["attempts"][-1]["error"] is None
    assert record.result["steps"]["verify"]["verdicts"] == {"within": 2}
    assert record.result["steps"]["extract:lin"]["extracted"] == 1
    assert record.versions["torch"]
    assert record.seconds > 0
    assert {file.name for file in record.files} == {
        *("model.onnx", "model_hierarchy.json", "verify.json", "validate.json", "view.html"),
        *("extracted/lin/lin.onnx", "extracted/lin/lin_hierarchy.json", "extracted/lin/manifest.json"),
    }
    assert f"{record.folder}/view.html" in (folder / "out" / "index.html").read_text(encoding="utf-8")
    file = folder / "out" / record.folder / "model.onnx"
    assert modelexport.validate(file).is_valid


def test_secrets_are_in_no_record_log_or_report(outcome: Any) -> None:
    folder, report, _ = outcome
    (record,) = records_of(folder / "out")["secrets"]
    log = (folder / "out" / record.log).read_text(encoding="utf-8")
    assert "AWS_SECRET_ACCESS_KEY" in log
    assert "***" in record.message
    everything = b"".join(files_in(folder / "out").values()) + json.dumps(report.as_dict()).encode()
    assert SECRET.encode() not in everything


def test_second_run_does_nothing_and_says_so(outcome: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, first, jobs = outcome
    monkeypatch.setenv(MARKER_VARIABLE, str(folder / "marker"))
    before = files_in(folder / "out")
    started = time.monotonic()
    report = modelexport.batch(jobs, folder / "out", cache=folder / "cache", workers=2)
    assert time.monotonic() - started < 5
    assert {job.action for job in report.jobs} == {"up_to_date", "failed_before"}
    assert [(job.status, job.message) for job in report.jobs] == [(job.status, job.message) for job in first.jobs]
    assert files_in(folder / "out") == before


def test_raised_limit_or_a_wish_runs_a_failed_job_again(outcome: Any) -> None:
    folder, _, jobs = outcome
    slow = {**jobs[6], "timeout": 3}
    actions = [
        modelexport.batch([job], folder / "out", dry_run=True, **options).jobs[0].action
        for job, options in [(slow, {}), (jobs[6], {}), (jobs[3], {}), (jobs[3], {"retry_failed": True})]
    ]
    assert actions == ["export", "failed_before", "failed_before", "export"]


def test_another_output_gets_the_same_bytes_from_the_cache(outcome: Any) -> None:
    folder, _, jobs = outcome
    report = modelexport.batch(jobs[:2], folder / "second", cache=folder / "cache", workers=1)
    assert [job.action for job in report.jobs] == ["copy", "copy"]
    (here,), (there,) = records_of(folder / "second")["good"], records_of(folder / "out")["good"]
    assert (here.source, here.digest) == ("cache", there.digest)
    assert (folder / "second" / here.folder / "model.onnx").is_file()


def test_files_without_a_record_are_recorded_and_not_exported_again(outcome: Any) -> None:
    folder, _, jobs = outcome
    (record,) = records_of(folder / "second")["other"]
    (folder / "second" / "records" / f"{record.id}.json").unlink()
    report = modelexport.batch(jobs[:2], folder / "second", workers=1)
    assert [job.action for job in report.jobs] == ["up_to_date", "record"]
    (again,) = records_of(folder / "second")["other"]
    assert (again.source, again.digest) == ("output", record.digest)


def test_interrupt_ends_the_processes_and_keeps_finished_work(outcome: Any, tmp_path: Path) -> None:
    folder, _, jobs = outcome
    file = tmp_path / "jobs.jsonl"
    lines = [jobs[0], {"model": f"{MODELS}:waiting", "name": "waiting"}]
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    arguments = ("batch", file, "-o", tmp_path / "out", "-j", "1", "--cache", folder / "cache")
    with start(*arguments, script=INTERRUPTIBLE, **{MARKER_VARIABLE: str(tmp_path / "marker")}) as process:
        for _ in range(1200):
            if (tmp_path / "marker").is_file() and (tmp_path / "marker").read_text():
                break
            time.sleep(0.05)
        child = int((tmp_path / "marker").read_text())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "finished jobs are kept" in errors
    assert not Path(f"/proc/{child}").exists()
    assert {job: records[0].status for job, records in records_of(tmp_path / "out").items()} == {"good": "succeeded"}


def test_killed_coordinator_takes_its_processes_with_it(outcome: Any, tmp_path: Path) -> None:
    script = (
        "import sys, modelexport\n"
        f"modelexport.batch([{{'model': {MODELS + ':waiting'!r}, 'name': 'waiting'}}], sys.argv[1], workers=1)\n"
    )
    environment = {**os.environ, MARKER_VARIABLE: str(tmp_path / "marker"), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", script, tmp_path / "out"], env=environment, cwd=ROOT) as process:
        for _ in range(1200):
            if (tmp_path / "marker").is_file() and (tmp_path / "marker").read_text():
                break
            time.sleep(0.05)
        child = Path("/proc") / (tmp_path / "marker").read_text()
        process.kill()
    for _ in range(200):
        if not child.exists():
            break
        time.sleep(0.05)
    assert not child.exists()
    assert records_of(tmp_path / "out") == {}


def test_two_coordinators_of_which_one_is_killed_leave_one_complete_result_for_each_job(tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    jobs = [{"model": f"{MODELS}:make({size})", "name": f"net{size}"} for size in (2, 3)]
    file.write_text("\n".join(map(json.dumps, jobs)), encoding="utf-8")
    arguments = ("batch", file, "-o", tmp_path / "out", "-j", "1", "--cache", tmp_path / "cache")
    with start(*arguments, TMPDIR=str(tmp_path)) as killed, start(*arguments, TMPDIR=str(tmp_path)) as other:
        while not list((tmp_path / "out" / "entries").glob("*.json")):
            time.sleep(0.02)
            assert killed.poll() is None or other.poll() is None
        killed.kill()
        killed.communicate()
        _, errors = other.communicate(timeout=120)
    assert other.returncode == 0, errors
    report = modelexport.batch(jobs, tmp_path / "out", cache=tmp_path / "cache", workers=1)
    assert report.passed
    assert {job.action for job in report.jobs} <= {"up_to_date", "record"}
    for records in records_of(tmp_path / "out").values():
        assert len({record.digest for record in records}) == 1
        assert 1 <= len(records) <= 2
    store = EntryStore(Location(tmp_path / "out"), named=True)
    for key in store.list_keys():
        entry = store.get(key)
        assert entry is not None
        store.fetch(entry, tmp_path / "read" / key)


FACTORY = """
import os, time, torch
import layers
from parts import scale

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.act = layers.Act()

    def forward(self, x):
        from space.late import shift
        return self.act(x) * scale + shift

def make():
    from helpers_beside import size
    marker = os.environ.get("MARKER")
    if marker:
        open(marker, "w").close()
        while os.path.exists(marker):
            time.sleep(0.05)
    return Net(), (torch.ones(1, size),)
"""


def write_project(folder: Path) -> Path:
    files = {
        "nets.py": FACTORY,
        "layers.py": "from torch.nn import ReLU as Act",
        "parts/__init__.py": "from .numbers_of_parts import scale",
        "parts/numbers_of_parts.py": "scale = 2.0",
        # A namespace package, imported by the forward pass.
        "space/late.py": "shift = 1.0",
        "parts/not_imported.py": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    library = folder.parent / "library"
    (library / "helpers_beside-1.0.dist-info").mkdir(parents=True, exist_ok=True)
    (library / "helpers_beside.py").write_text("size = 4", encoding="utf-8")
    (library / "helpers_beside-1.0.dist-info" / "top_level.txt").write_text("helpers_beside", encoding="utf-8")
    set_version(library, "1.0")
    return library


def set_version(library: Path, version: str) -> None:
    about = library / "helpers_beside-1.0.dist-info" / "METADATA"
    about.write_text(f"Metadata-Version: 2.1\nName: helpers-beside\nVersion: {version}\n", encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.syspath_prepend(write_project(folder))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)
    return folder


def operators(output: Path, record: Record) -> set[str]:
    return {node.op_type for node in onnx.load(output / record.folder / "model.onnx").graph.node}


def test_result_is_stale_when_any_file_or_distribution_that_the_factory_imported_changed(project: Path) -> None:
    def action(**options: Any) -> str:
        return modelexport.batch(["nets:make"], "out", workers=1, **options).jobs[0].action

    library = project.parent / "library"
    changes: dict[str, Callable[[], object]] = {
        "beside": lambda: (project / "layers.py").write_text("from torch.nn import SiLU as Act", encoding="utf-8"),
        "package": lambda: (project / "parts/__init__.py").write_text("scale = 3.0", encoding="utf-8"),
        "submodule": lambda: (project / "parts/numbers_of_parts.py").write_text("scale = 3.0", encoding="utf-8"),
        "in forward": lambda: (project / "space/late.py").write_text("shift = 2.0", encoding="utf-8"),
        "deleted": (project / "parts/numbers_of_parts.py").unlink,
        "other folder": lambda: (library / "helpers_beside.py").write_text("size = 5", encoding="utf-8"),
        "version": lambda: set_version(library, "1.1"),
    }
    assert action() == "export"
    (project / "parts/not_imported.py").write_text("x = 1", encoding="utf-8")
    assert action(dry_run=True) == "up_to_date"
    for name, change in changes.items():
        change()
        assert (name, action(dry_run=True)) == (name, "export")
        write_project(project)
        assert (name, action(dry_run=True)) == (name, "up_to_date")
    changes["beside"]()
    assert action() == "export"
    before, after = records_of(project / "out")["nets-make"]
    assert ("Relu" in operators(project / "out", before), "Relu" in operators(project / "out", after)) == (True, False)
    # The earlier code has its earlier result.
    assert action(dry_run=True) == "up_to_date"
    write_project(project)
    assert action(dry_run=True) == "up_to_date"
    # A damaged result is not taken for one.
    for entry in (project / "out/entries").iterdir():
        entry.write_text("{", encoding="utf-8")
    assert action(dry_run=True) == "export"


def test_job_that_failed_runs_again_when_the_module_that_it_failed_in_is_repaired(project: Path) -> None:
    for broken in ("raise RuntimeError", "def ("):
        (project / "layers.py").write_text(broken, encoding="utf-8")
        runs = [modelexport.batch(["nets:make"], "out", workers=1, dry_run=dry).jobs[0] for dry in (False, True)]
        assert [run.action for run in runs] == ["export", "failed_before"]
    write_project(project)
    assert modelexport.batch(["nets:make"], "out", dry_run=True).jobs[0].action == "export"


def test_batches_with_other_sources_at_the_same_time_share_no_result(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_project(other)
    (other / "layers.py").write_text("from torch.nn import Sigmoid as Act", encoding="utf-8")
    marker = tmp_path / "marker"
    arguments = ("--cache", tmp_path / "cache", "-j", "1")
    path = os.pathsep.join([str(other), *filter(None, sys.path)])
    with start(
        *("batch", other / "nets.py:make", "-o", tmp_path / "slow", *arguments), MARKER=str(marker), PYTHONPATH=path
    ) as slow:
        for _ in range(1200):
            if marker.exists():
                break
            time.sleep(0.05)
        assert modelexport.batch([f"{project}/nets.py:make"], "out", cache=tmp_path / "cache", workers=1).passed
        marker.unlink()
        # The second attempt waits as well.
        while slow.poll() is None:
            marker.unlink(missing_ok=True)
            time.sleep(0.1)
    assert slow.returncode == 0
    ((*_, record),) = records_of(tmp_path / "slow").values()
    assert "Sigmoid" in operators(tmp_path / "slow", record)
