"""Batches on a real Ray cluster of several nodes: the same results as local ones, and a lost worker or node."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import modelexport
from modelexport.job_results import Location, Record, read_record, record_names
from tests.support.batch_models import MARKER_VARIABLE
from tests.support.command_process import ROOT

pytest.importorskip("ray", reason="make cluster runs these tests")

MODELS = f"{ROOT}/tests/support/batch_models.py"


@pytest.fixture(scope="module")
def marker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("ray") / "marker"
    with pytest.MonkeyPatch.context() as patch:
        # Nodes and workers have the environment of the process that starts them.
        patch.setenv(MARKER_VARIABLE, str(path))
        patch.setenv("RAY_DISABLE_IMPORT_WARNING", "1")
        yield path


@pytest.fixture(scope="module")
def cluster(marker: Path) -> Iterator[Any]:
    """A head without CPUs for jobs, so that it can lose every other node."""
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        started.add_node(num_cpus=1)
    started.wait_for_nodes()
    yield started
    started.shutdown()


def records_of(output: Path) -> dict[str, list[Record]]:
    location = Location(output)
    found: dict[str, list[Record]] = {}
    for name in record_names(location):
        record = read_record(location, name.id)
        found.setdefault(record.job, []).append(record)
    return found


def run(cluster: Any, jobs: list[dict[str, Any]], output: Path, **options: Any) -> modelexport.BatchReport:
    return modelexport.batch(jobs, output, engine="ray", ray={"address": cluster.address}, **options)


def test_jobs_end_on_ray_as_they_do_locally(cluster: Any, tmp_path: Path) -> None:
    jobs = [
        {"model": f"{MODELS}:make(4)", "name": "good"},
        {"model": f"{MODELS}:crash", "name": "crash"},
        {"model": f"{MODELS}:forever", "name": "forever", "timeout": 2},
        {"model": f"{MODELS}:fails", "name": "fails"},
    ]
    report = run(cluster, jobs, tmp_path / "ray")
    assert {job.job: job.failure or job.status for job in report.jobs} == {
        "good": "succeeded",
        "crash": "crashed",
        "forever": "timed_out",
        "fails": "bad_input",
    }
    again = run(cluster, jobs, tmp_path / "ray")
    assert {job.action for job in again.jobs} == {"up_to_date", "failed_before"}
    local = modelexport.batch(jobs[:1], tmp_path / "local", workers=1)
    assert local.passed
    (here,), (there,) = records_of(tmp_path / "local")["good"], records_of(tmp_path / "ray")["good"]
    assert (here.digest, here.engine) == (there.digest, "local")
    assert there.engine == "ray"


def test_killed_worker_is_an_attempt_that_is_tried_again(cluster: Any, marker: Path, tmp_path: Path) -> None:
    marker.unlink(missing_ok=True)
    jobs = [{"model": f"{MODELS}:kill_worker_once", "name": "unlucky"}, {"model": f"{MODELS}:make(5)", "name": "other"}]
    report = run(cluster, jobs, tmp_path / "out")
    assert report.passed
    first, second = records_of(tmp_path / "out")["unlucky"]
    assert (first.failure, second.status) == ("killed", "succeeded")
    assert "WorkerCrashedError" in first.message
    assert len(records_of(tmp_path / "out")["other"]) == 1


def test_killed_node_costs_the_jobs_that_ran_there_an_attempt(cluster: Any, marker: Path, tmp_path: Path) -> None:
    marker.unlink(missing_ok=True)
    nodes = list(cluster.worker_nodes)

    def remove_node() -> None:
        while not (marker.is_file() and marker.read_text(encoding="ascii")):
            time.sleep(0.1)
        for node in nodes:
            if str(node.all_processes["raylet"][0].process.pid) == marker.read_text(encoding="ascii"):
                cluster.remove_node(node, allow_graceful=False)

    thread = threading.Thread(target=remove_node, daemon=True)
    thread.start()
    jobs = [{"model": f"{MODELS}:slow_once", "name": "lost"}, {"model": f"{MODELS}:make(6)", "name": "other"}]
    report = run(cluster, jobs, tmp_path / "out")
    thread.join(30)
    assert report.passed, report.jobs
    records = records_of(tmp_path / "out")["lost"]
    assert [record.failure or record.status for record in records] == ["killed", "succeeded"]


def test_storage_that_other_processes_do_not_see_is_refused(cluster: Any) -> None:
    with pytest.raises(modelexport.InputError, match="memory://x is in this process only"):
        run(cluster, [{"model": f"{MODELS}:make"}], "memory://x")  # type: ignore[arg-type]


def test_address_that_does_not_answer_is_one_error(tmp_path: Path) -> None:
    started = time.monotonic()
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1"):
        with pytest.raises(modelexport.InputError, match="does not answer"):
            modelexport.batch([f"{MODELS}:make"], tmp_path / "out", engine="ray", ray={"address": address})
    assert time.monotonic() - started < 10
    assert not os.path.lexists(tmp_path / "out")
