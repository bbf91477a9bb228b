"""Batches on a real S3 server on 127.0.0.1: results, conditional writes, broken uploads, and secrets."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import modelexport
from modelexport import StorageError
from modelexport.job_results import EntryStore, Location
from tests.support.command_process import ROOT

moto_server = pytest.importorskip("moto.server", reason="make cluster runs these tests")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:botocore", "ignore::ResourceWarning")

MODELS = f"{ROOT}/tests/support/batch_models.py"
KEY, SECRET = "AKIAEXAMPLEKEY", "averysecretsecret"
_buckets = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, Any]]:
    started = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    started.start()
    host, port = started.get_host_and_port()
    yield {"endpoint_url": f"http://{host}:{port}", "key": KEY, "secret": SECRET}
    started.stop()


@pytest.fixture
def bucket(server: dict[str, Any]) -> str:
    import s3fs

    name = f"bucket{next(_buckets)}"
    s3fs.S3FileSystem(**server).mkdir(name)
    return f"s3://{name}"


def job_files(folder: Path, graph: str, weights: int = 10) -> Path:
    folder.mkdir()
    (folder / "model.onnx").write_text(graph, encoding="utf-8")
    with (folder / "model-1.onnx.data").open("wb") as file:
        file.truncate(weights)
    return folder


def test_batch_writes_reads_and_resumes(server: dict[str, Any], bucket: str, tmp_path: Path) -> None:
    jobs = [{"model": f"{MODELS}:make(4)", "name": "good"}, {"model": f"{MODELS}:prints_secrets", "name": "secrets"}]
    options: dict[str, Any] = {"cache": f"{bucket}/cache", "storage_options": server, "workers": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path))
        first = modelexport.batch(jobs, f"{bucket}/one", **options)
        again = modelexport.batch(jobs, f"{bucket}/one", **options)
        copied = modelexport.batch(jobs[:1], f"{bucket}/two", **options)
        rows = modelexport.read_catalog(f"{bucket}/one", server).latest()
        assert len(modelexport.read_catalog(f"{bucket}/one", server).to_pandas()) == 2
    assert [job.failure or job.status for job in first.jobs] == ["succeeded", "bad_input"]
    assert [job.action for job in again.jobs] == ["up_to_date", "failed_before"]
    assert [job.action for job in copied.jobs] == ["copy"]
    assert [row["job"] for row in rows] == ["good", "secrets"]
    location = Location(bucket, server)
    everything = b"".join(location.read(name) for name in location.sizes())
    assert SECRET.encode() not in everything
    assert KEY.encode() not in everything
    assert SECRET not in json.dumps(first.as_dict())


def test_first_of_two_writers_wins(server: dict[str, Any], bucket: str, tmp_path: Path) -> None:
    store = EntryStore(Location(f"{bucket}/x", server), named=True)
    first = store.put("1" * 64, "net", job_files(tmp_path / "a", "one"), {})
    assert store.put("1" * 64, "net", job_files(tmp_path / "b", "two"), {}) == first
    store.fetch(first, tmp_path / "read")
    assert (tmp_path / "read" / "model.onnx").read_text(encoding="utf-8") == "one"


def test_upload_that_breaks_off_at_any_request_leaves_the_old_results_readable(
    server: dict[str, Any], bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    location = Location(f"{bucket}/x", server)
    store = EntryStore(location, named=True)
    old = store.put("1" * 64, "net", job_files(tmp_path / "old", "old graph"), {})
    # Weights that are uploaded in three parts.
    new = job_files(tmp_path / "new", "new graph", 101 * 2**20)
    original = s3fs.S3FileSystem._call_s3
    requests = 0
    limit = -1

    async def broken(self: Any, *args: Any, **options: Any) -> Any:
        nonlocal requests
        if requests == limit:
            raise ConnectionResetError("broken off")
        requests += 1
        return await original(self, *args, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", broken)
    for limit in itertools.count():
        requests = 0
        try:
            store.put("2" * 64, "net", new, {})
            break
        except StorageError:
            pass
        finally:
            broke_at, limit = limit, -1
        assert store.list_keys() == {"1" * 64}, broke_at
        store.fetch(old, tmp_path / f"read{broke_at}")
        assert (tmp_path / f"read{broke_at}" / "model.onnx").read_text(encoding="utf-8") == "old graph"
    # Begin, three parts, end, graph, entry.
    assert broke_at == 7
    assert store.list_keys() == {"1" * 64, "2" * 64}


@pytest.mark.parametrize(
    ("url", "words"),
    [("s3://no-such-bucket-here/x", "Cannot write s3://no-such-bucket-here/x"), ("s3://", "cannot|Cannot")],
)
def test_place_that_cannot_be_written_is_one_error(server: dict[str, Any], url: str, words: str) -> None:
    with pytest.raises(modelexport.InputError, match=words) as caught:
        modelexport.batch([f"{MODELS}:make"], url, storage_options=server)
    assert SECRET not in str(caught.value)
