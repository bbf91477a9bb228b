"""`modelexport batch`: export many models, each in a process of its own."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelexport.cli.options import option
from modelexport.cli.output import FINDINGS, Format, FormatOption, Output, command_line, message, stdout_width
from modelexport.cli.pages import Section, as_text
from modelexport.display import counted, shortened
from modelexport.errors import InputError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from modelexport.batching import BatchProgress, BatchReport, JobReport

_INTERRUPTED = 130
_ROWS = 20
_MESSAGE_CHARACTERS = 200
_ACTIONS = {
    "export": "run",
    "copy": "copied from the cache",
    "record": "exported by an interrupted run",
    "up_to_date": "already there",
    "failed_before": "failed before",
}


@dataclasses.dataclass(frozen=True)
class JobDefaults:
    """Fields of all jobs that do not set them themselves."""

    steps: Annotated[
        list[str] | None,
        option("Jobs", "What follows each export: verify, validate, profile, extract:SELECTOR, view; repeat for more."),
    ] = None
    opset: Annotated[int | None, option("Jobs", "The ONNX opset version.")] = None
    dtype: Annotated[str | None, option("Jobs", "The data type of the weights: float32, float16, bfloat16.")] = None
    random_weights: Annotated[
        bool, option("Jobs", "Random weights with a fixed seed; no weights are read.", "--random-weights")
    ] = False
    trust_remote_code: Annotated[
        bool, option("Jobs", "Allow Python code that comes with a model to run.", "--trust-remote-code")
    ] = False

    def fields(self) -> dict[str, Any]:
        """The fields that were given."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) not in (field.default, [])
        }


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """Where and how jobs run."""

    engine: Annotated[str, option("Engine", "local: processes of this machine; ray: tasks of a Ray cluster.")] = "local"
    workers: Annotated[
        int | None, option("Engine", "Jobs at a time; by default the number of CPUs.", "--workers", "-j", min=1)
    ] = None
    address: Annotated[
        str | None, option("Engine", "The Ray cluster: auto, host:6379 or ray://host:10001.", "--address")
    ] = None
    num_cpus: Annotated[float | None, option("Engine", "CPUs of each job on Ray.", "--num-cpus", min=0)] = None
    num_gpus: Annotated[float | None, option("Engine", "GPUs of each job on Ray.", "--num-gpus", min=0)] = None
    shard: Annotated[str | None, option("Engine", "2/8: only the second of eight parts of the jobs.")] = None
    timeout: Annotated[float, option("Engine", "Seconds for each job; inf: no limit.", min=1)] = 1800
    memory_limit: Annotated[
        float | None, option("Engine", "GiB for each process of a job; by default the machine's memory.", min=0.1)
    ] = None
    retries: Annotated[
        int, option("Engine", "More attempts after a failure of the network, the storage, or a killed process.", min=0)
    ] = 2
    retry_failed: Annotated[
        bool, option("Engine", "Run jobs again that failed before in the same way.", "--retry-failed")
    ] = False

    def for_batch(self) -> dict[str, Any]:
        """The arguments of `batch`."""
        ray = {"address": self.address, "num_cpus": self.num_cpus, "num_gpus": self.num_gpus}
        given = {name: value for name, value in ray.items() if value is not None}
        return {
            "engine": self.engine,
            "ray": given or None,
            "workers": self.workers,
            "shard": self.shard,
            "timeout": None if math.isinf(self.timeout) else self.timeout,
            "memory": self.memory_limit,
            "retries": self.retries,
            "retry_failed": self.retry_failed,
        }


def batch(
    *,
    jobs: Annotated[
        list[str] | None,
        typer.Argument(help="Files of jobs (.toml, .jsonl, .csv), models, or patterns such as 'models/*'."),
    ] = None,
    output: Annotated[str, option("Output", "The folder or URL of the results: DIR, s3://…", "--output", "-o")],
    from_file: Annotated[Path | None, option("Jobs", "A file with a model in each line.")] = None,
    defaults: JobDefaults,
    engine: EngineOptions,
    cache: Annotated[
        str | None,
        option(
            "Output",
            "A folder or URL that several outputs share: what it has is copied, not exported.",
            envvar="MODELEXPORT_CACHE",
        ),
    ] = None,
    dry_run: Annotated[bool, option("Output", "Show what would be done.", "--dry-run", "-n")] = False,
    output_format: FormatOption = Format.HUMAN,
    out: Output,
) -> None:
    """Export many models in parallel, each in a process of its own, and record every attempt.

    What the output or the cache already has is not exported again, and a second run continues an interrupted one. A job
    that fails, crashes, takes too long or needs too much memory is a record and does not disturb the others. Exits with
    1 if a job failed; docs/commands/batch.md has the format of jobs. modelexport catalog shows the results.

    Examples:

        modelexport batch jobs.toml -o exports

        modelexport batch 'models/*' -o exports --steps verify --random-weights

        modelexport batch jobs.csv -o s3://bucket/exports --cache s3://bucket/cache --shard 2/8

        modelexport batch jobs.toml -o /shared/exports --engine ray --address auto
    """
    if not jobs and from_file is None:
        raise InputError("give a file of jobs, models, a pattern, or --from-file (see --help)")
    from modelexport.batching import batch as run_batch

    try:
        with _ProgressDisplay(quiet=out.quiet or dry_run) as display:
            report = run_batch(
                jobs or [],
                output,
                from_file=from_file,
                defaults=defaults.fields(),
                cache=cache,
                dry_run=dry_run,
                progress=display.show,
                **engine.for_batch(),
            )
    except KeyboardInterrupt:
        message("interrupted: finished jobs are kept, and the same command continues with the others")
        sys.exit(_INTERRUPTED)
    if output_format is Format.JSON:
        out.json(report.as_dict())
    elif dry_run:
        out.summary(_plan_lines(report))
    else:
        out.summary(_summary_lines(report))
    if not dry_run and not report.passed:
        raise typer.Exit(FINDINGS)


def _plan_lines(report: BatchReport) -> Iterator[str]:
    words = {**_ACTIONS, "copy": "copy from the cache", "record": "add the record"}
    rows = tuple((words[job.action], job.job, _before(job), job.failure) for job in report.jobs)
    table = Section("", (), ("action", "job", "last time", "failure"), rows, optional=("last time",))
    yield from as_text("", [table], stdout_width()).splitlines()
    yield ""
    counts = Counter(job.action for job in report.jobs)
    parts = ", ".join(f"{count} {words[action]}" for action, count in counts.items())
    yield f"{counted(len(report.jobs), 'job')}: {parts}; nothing was done"


def _before(job: JobReport) -> str:
    return "" if job.status == "planned" else job.status


def _summary_lines(report: BatchReport) -> Iterator[str]:
    bad = [job for job in report.jobs if job.status != "succeeded"]
    if bad:
        rows = tuple((job.status, job.job, job.failure, shortened(job.message, _MESSAGE_CHARACTERS)) for job in bad)
        table = Section("", (), ("status", "job", "failure", "message"), rows[:_ROWS], max(0, len(rows) - _ROWS))
        yield from as_text("", [table], stdout_width()).splitlines()
        yield ""
    counts = ", ".join(f"{count} {status}" for status, count in sorted(report.counts.items(), reverse=True))
    yield f"{counted(len(report.jobs), 'job')} in {report.seconds:.1f} s: {counts}"
    yield _done(report.jobs)
    yield f"next: {command_line('catalog', 'ls', report.output)}"


def _done(jobs: tuple[JobReport, ...]) -> str:
    counts = Counter(job.action for job in jobs)
    return ", ".join(f"{counts[action]} {words}" for action, words in _ACTIONS.items() if counts[action])


class _ProgressDisplay:
    """A bar with rate and remaining time on a terminal; elsewhere only failures, one line each."""

    def __init__(self, *, quiet: bool) -> None:
        from rich.console import Console

        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._started = time.monotonic()
        self._failed = 0

    def __enter__(self) -> _ProgressDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, event: BatchProgress) -> None:
        """A job ended, or has to wait for its next attempt."""
        if self._quiet:
            return
        if event.job and event.status != "succeeded":
            self._failed += event.again_after is None
            self._print(event)
        if self._console.is_terminal:
            self._update(event)

    def _print(self, event: BatchProgress) -> None:
        from modelexport.display import printable

        again = "" if event.again_after is None else f" (again in {event.again_after:.0f} s)"
        what = event.failure or event.status
        text = f"{what}: {event.job}: {shortened(event.message, _MESSAGE_CHARACTERS)}{again}"
        console = self._console if self._progress is None else self._progress.console
        console.print(printable(text), markup=False, soft_wrap=True)

    def _update(self, event: BatchProgress) -> None:
        if self._progress is None:
            self._start(event.total)
        assert self._progress is not None
        assert self._task is not None
        minutes = max(time.monotonic() - self._started, 1e-3) / 60
        words = f"{event.done / minutes:.1f} jobs/min, {self._failed} failed"
        self._progress.update(self._task, completed=event.done, description=words)

    def _start(self, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        # A task that takes minutes: the remaining time is estimated from all of them.
        self._progress = Progress(*columns, console=self._console, speed_estimate_period=3600)
        self._progress.start()
        self._task = self._progress.add_task("", total=total)
