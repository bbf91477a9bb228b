"""`batch`: read the jobs, check everything that can be checked before one starts, and run what is left to do."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from modelexport.batching.attempts import Stores, remove_leftovers
from modelexport.batching.coordinator import BatchProgress, Coordinator, JobReport
from modelexport.batching.engines import Engine, LocalEngine
from modelexport.batching.file_hashes import FileHashes
from modelexport.batching.job_files import read_jobs
from modelexport.batching.jobs import Job, check_limits
from modelexport.batching.planning import DEFAULT_TIMEOUT, Action, PlannedJob, plan_jobs
from modelexport.display import Summary, summarized
from modelexport.errors import InputError
from modelexport.hierarchy import json_schema
from modelexport.job_results import Catalog, Location, Status, user_cache, write_index

if TYPE_CHECKING:
    from collections.abc import Callable

_SHARD = re.compile(r"(\d+)/(\d+)")
ENGINES = ("local", "ray")


def _summary(report: BatchReport) -> Summary:
    facts = {"output": report.output, "jobs": len(report.jobs), **report.counts, "seconds": round(report.seconds, 1)}
    rows = [(job.job, job.status, job.action, job.failure, job.message) for job in report.jobs]
    return Summary(facts, ("job", "status", "action", "failure", "message"), rows)


@summarized(_summary)
class BatchReport(msgspec.Struct, frozen=True):
    """What a batch did.

    Attributes:
        output: The folder or URL.
        jobs: What was done for each job; with ``dry_run``, what would be done.
        seconds: Wall-clock time.
        schema_version: The version of this format.
    """

    output: str
    jobs: tuple[JobReport, ...]
    seconds: float
    schema_version: int = 1

    @property
    def counts(self) -> dict[str, int]:
        """The number of jobs by status."""
        return dict(Counter(job.status for job in self.jobs))

    @property
    def passed(self) -> bool:
        """Whether every job succeeded."""
        return all(job.status == Status.SUCCEEDED for job in self.jobs)

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON."""
        content: dict[str, Any] = msgspec.to_builtins(self)
        return content


def batch_schema() -> dict[str, Any]:
    """The JSON Schema of the output of ``modelexport batch --format json``."""
    return json_schema("modelexport batch", BatchReport)


class RayOptions(msgspec.Struct, frozen=True):
    """How jobs run on a Ray cluster.

    Attributes:
        address: The address of the cluster: ``auto``, ``127.0.0.1:6379``, ``ray://head:10001``.
        num_cpus: The CPUs of each job.
        num_gpus: The GPUs of each job.
        memory: The GiB of memory that Ray reserves for each job; by default its memory limit if it has one.
    """

    address: str = "auto"
    num_cpus: float = 1
    num_gpus: float = 0
    memory: float | None = None


def batch(
    jobs: str | Path | Iterable[str | Path | Mapping[str, Any] | Job],
    output: str | Path,
    *,
    from_file: str | Path | None = None,
    defaults: Mapping[str, Any] | None = None,
    engine: str = "local",
    ray: RayOptions | Mapping[str, Any] | None = None,
    workers: int | None = None,
    cache: str | Path | None = None,
    storage_options: Mapping[str, Any] | None = None,
    shard: str | None = None,
    retries: int = 2,
    retry_failed: bool = False,
    timeout: float | None = DEFAULT_TIMEOUT,
    memory: float | None = None,
    dry_run: bool = False,
    progress: Callable[[BatchProgress], None] = lambda event: None,
) -> BatchReport:
    """Export many models, each in a process of its own, and record every attempt.

    What the output has already is not exported again: the key of a job covers the model's weights or source, its inputs
    and options, and the versions of the libraries. A job that failed is not run again until one of these changes,
    unless the failure was transient.

    Args:
        jobs: A file of jobs (``.toml``, ``.jsonl``, ``.csv``), a model reference, a pattern such as ``models/*``, or a
            list of these and of jobs as dicts (docs/commands/batch.md has the fields).
        output: A folder or URL for the files, records and logs.
        from_file: A file with a model reference in each line.
        defaults: Fields of every job that does not set them itself.
        engine: ``"local"``, or ``"ray"`` for a Ray cluster.
        ray: The `RayOptions`, or a dict of them.
        workers: How many jobs run at a time; None for the number of CPUs.
        cache: A folder or URL that several outputs and machines share: what it has is copied and not exported.
        storage_options: Arguments of the fsspec drivers of `output` and `cache`. They are not recorded.
        shard: ``"2/8"`` does the second of eight parts of the jobs.
        retries: How many more attempts a job has after a transient failure.
        retry_failed: Run jobs again that failed before.
        timeout: Seconds for a job that does not say how many; None for no limit.
        memory: GiB for each process of a job that does not say how much; None for the memory of the machine.
        dry_run: Only say what would be done.
        progress: Called when a job ended.

    Returns:
        What was done for each job.

    Raises:
        InputError: A job, a model, the output, the cache or the cluster cannot be used; nothing was started.
        StorageError: The output cannot be read or written.
    """
    started = time.monotonic()
    check_limits("batch", timeout=timeout, memory=memory)
    chosen = _shard(read_jobs(_listed(jobs), from_file=from_file, defaults=defaults), shard)
    output_location = Location(output, storage_options)
    cache_location = None if cache is None else Location(cache, storage_options)
    stores = Stores(output_location, cache_location)
    with _engine(engine, ray, workers, stores, dry_run=dry_run) as chosen_engine:
        if not dry_run:
            for location in (output_location, cache_location):
                if location is not None:
                    location.check_writable()
                    location.remove_leftovers()
        plan = _planned(chosen, stores, timeout, memory, retry_failed)
        if dry_run or chosen_engine is None:
            planned = [
                JobReport(one.job.name, one.status or "planned", one.action.value, one.failure, record=one.record)
                for one in plan
            ]
            return BatchReport(output_location.url, tuple(planned), time.monotonic() - started)
        remove_leftovers()
        reports = Coordinator(chosen_engine, stores, retries=retries, progress=progress).run(plan)
        if any(report.attempts or report.action == Action.RECORD for report in reports):
            write_index(output_location, Catalog(output, storage_options))
    return BatchReport(output_location.url, tuple(reports), round(time.monotonic() - started, 3))


def export_batch(
    configs: Iterable[Mapping[str, Any] | str | Path | Job],
    output: str | Path,
    *,
    max_workers: int | None = None,
    **options: Any,
) -> BatchReport:
    """Export many models in local processes: `batch` for jobs that a program made.

    Args:
        configs: A dict for each job, with the fields of `batch`, or a model reference.
        output: A folder or URL.
        max_workers: How many jobs run at a time; None for the number of CPUs.
        **options: Other arguments of `batch`.

    Raises:
        InputError: A job, a model or the output cannot be used; nothing was started.
        StorageError: The output cannot be read or written.
    """
    return batch(configs, output, workers=max_workers, **options)


def _listed(jobs: Any) -> list[Any]:
    if isinstance(jobs, str | Path | Mapping | Job):
        return [jobs]
    if not isinstance(jobs, Iterable):
        raise InputError(f"jobs are a file, a model, a pattern or a list of these, not {type(jobs).__name__}")
    found = list(jobs)
    for job in found:
        if not isinstance(job, str | Path | Mapping | Job):
            raise InputError(f"a job is a dict, a path or a model reference, not {type(job).__name__}")
    return found


def _shard(jobs: Sequence[Job], shard: str | None) -> list[Job]:
    """Every n-th job."""
    if shard is None:
        return list(jobs)
    # Untyped callers pass anything.
    match = _SHARD.fullmatch(str(shard))
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise InputError(f"--shard {shard!r} cannot be read: write 2/8 for the second of eight parts")
    return list(jobs[int(match[1]) - 1 :: int(match[2])])


def _planned(
    jobs: Sequence[Job], stores: Stores, timeout: float | None, memory: float | None, retry_failed: bool
) -> list[PlannedJob]:
    hashes = FileHashes(user_cache() / "file-hashes.sqlite")
    try:
        return plan_jobs(jobs, stores, hashes, timeout=timeout, memory=memory, retry_failed=retry_failed)
    finally:
        hashes.close()


@contextlib.contextmanager
def _engine(
    name: str, ray: RayOptions | Mapping[str, Any] | None, workers: int | None, stores: Stores, *, dry_run: bool
) -> Iterator[Engine | None]:
    if name not in ENGINES:
        raise InputError(f"unknown engine {name!r}: use {' or '.join(ENGINES)}")
    if name == "local" and ray is not None:
        raise InputError("the address and resources of a Ray cluster need the engine ray: --engine ray")
    if dry_run:
        yield None
        return
    engine: Engine
    if name == "ray":
        from modelexport.batching.ray_engine import RayEngine

        try:
            options = ray if isinstance(ray, RayOptions) else msgspec.convert(dict(ray or {}), RayOptions)
        except msgspec.ValidationError as error:
            raise InputError(f"the options of Ray are wrong: {error}") from error
        engine = RayEngine(options, workers, stores)
    else:
        engine = LocalEngine(workers)
    try:
        yield engine
    finally:
        engine.close()
