"""Run a plan: attempts with retries, progress, an interrupt that keeps finished work, and the report of all jobs."""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait

import msgspec

from modelexport.batching.attempts import Attempt, Stores, success_record
from modelexport.batching.engines import Engine
from modelexport.batching.keys import installed_versions
from modelexport.batching.planning import Action, PlannedJob
from modelexport.display import message_of
from modelexport.errors import ModelExportError
from modelexport.job_results import Failure, Record, Status, new_record_id, read_record, utc_time, write_record

_FIRST_PAUSE = 2.0
_LONGEST_PAUSE = 120.0
_WAIT_SECONDS = 0.5


class JobReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a batch did for one job.

    Attributes:
        job: The name of the job.
        status: ``succeeded``, ``findings`` or ``failed``.
        action: ``export``, ``copy`` (from the cache), ``record``, ``up_to_date`` or ``failed_before``.
        failure: Why it failed.
        message: What went wrong.
        attempts: How many attempts this batch made.
        seconds: The time of the last attempt.
        folder: The folder of its files, within the output.
        record: The name of its record.
    """

    job: str
    status: str
    action: str
    failure: str = ""
    message: str = ""
    attempts: int = 0
    seconds: float = 0.0
    folder: str = ""
    record: str = ""


class BatchProgress(msgspec.Struct, frozen=True):
    """A job ended, or will be tried again after a pause. The first one, without a job, says how many there are."""

    done: int
    total: int
    job: str = ""
    status: str = ""
    failure: str = ""
    message: str = ""
    again_after: float | None = None


Observer = Callable[[BatchProgress], None]


class Coordinator:
    """Runs planned jobs on an engine.

    Args:
        engine: Where attempts run.
        stores: The output and the cache.
        retries: How many more attempts a job has after a transient failure.
        progress: Called when a job ended.
        pause: The seconds before the second attempt; each further pause is twice as long.
    """

    def __init__(
        self,
        engine: Engine,
        stores: Stores,
        *,
        retries: int = 2,
        progress: Observer = lambda event: None,
        pause: float = _FIRST_PAUSE,
    ) -> None:
        self._engine = engine
        self._stores = stores
        self._retries = retries
        self._progress = progress
        self._pause = pause

    def run(self, plan: Sequence[PlannedJob]) -> list[JobReport]:
        """Do what the plan says, and return what came of each job, in its order.

        Raises:
            KeyboardInterrupt: The user interrupted it; all processes have ended, and finished jobs are stored.
        """
        reports = {planned.job.name: self._without_engine(planned) for planned in plan}
        waiting = [planned for planned in plan if reports[planned.job.name] is None]
        total = len(waiting)
        if total:
            self._progress(BatchProgress(0, total))
        try:
            for done, (name, report) in enumerate(self._run_all(waiting, total), 1):
                reports[name] = report
                self._progress(BatchProgress(done, total, name, report.status, report.failure, report.message))
        except BaseException:
            self._engine.stop()
            raise
        return [report for report in reports.values() if report is not None]

    def _without_engine(self, planned: PlannedJob) -> JobReport | None:
        """The report of a job that is not run; None for the others."""
        name, action = planned.job.name, planned.action
        if action is Action.UP_TO_DATE and planned.status == Status.SUCCEEDED:
            return JobReport(name, planned.status, action.value, record=planned.record)
        if action in (Action.UP_TO_DATE, Action.FAILED_BEFORE):
            return _report(read_record(self._stores.output.location, planned.record), action, 0)
        if action is Action.RECORD:
            entry = self._stores.output.get(planned.key)
            if entry is not None:
                record = success_record(self._attempt(planned, 1), entry, "output", time.time())
                write_record(self._stores.output.location, record)
                return _report(record, action, 0)
        return None

    def _run_all(self, plan: Sequence[PlannedJob], total: int) -> Iterable[tuple[str, JobReport]]:
        order = itertools.count()
        # The next jobs: when they may begin, their order, and the number of the attempt.
        due = [(0.0, next(order), planned, 1) for planned in plan]
        running: dict[Future[Record | None], tuple[PlannedJob, int]] = {}
        while due or running:
            while due and len(running) < self._engine.slots and due[0][0] <= time.monotonic():
                _, _, planned, number = heapq.heappop(due)
                future = self._engine.submit(self._attempt(planned, number), self._stores)
                running[future] = planned, number
            if not running:
                time.sleep(max(0.0, min(_WAIT_SECONDS, due[0][0] - time.monotonic())))
                continue
            ended, _ = wait(running, _WAIT_SECONDS, FIRST_COMPLETED)
            for future in ended:
                planned, number = running.pop(future)
                record = self._record_of(future, planned, number)
                if record.failure is not None and record.failure.is_transient and number <= self._retries:
                    pause = min(_LONGEST_PAUSE, self._pause * 2 ** (number - 1)) * random.uniform(0.75, 1.25)
                    heapq.heappush(due, (time.monotonic() + pause, next(order), planned, number + 1))
                    event = BatchProgress(
                        total - len(due) - len(running),
                        total,
                        record.job,
                        record.status,
                        record.failure,
                        record.message,
                        pause,
                    )
                    self._progress(event)
                else:
                    yield planned.job.name, _report(record, planned.action, number)

    def _attempt(self, planned: PlannedJob, number: int) -> Attempt:
        return Attempt(planned.job, planned.key, number, planned.limits, self._engine.name, installed_versions())

    def _record_of(self, future: Future[Record | None], planned: PlannedJob, number: int) -> Record:
        """The record of an attempt; made here where the worker could not write one."""
        try:
            record = future.result()
        except CancelledError:
            raise KeyboardInterrupt from None
        except ModelExportError as error:
            return self._lost(planned, number, Failure.STORAGE, str(error))
        except Exception as error:  # noqa: BLE001  Ray raises many types where a worker or a node is lost
            return self._lost(
                planned, number, Failure.KILLED, f"{type(error).__name__}: {message_of(error)}".splitlines()[0]
            )
        if record is None:
            raise KeyboardInterrupt
        return record

    def _lost(self, planned: PlannedJob, number: int, failure: Failure, message: str) -> Record:
        attempt = self._attempt(planned, number)
        record = Record(
            id=new_record_id(planned.key, Status.FAILED, failure),
            job=planned.job.name,
            model=planned.job.model,
            key=planned.key,
            status=Status.FAILED,
            failure=failure,
            message=message,
            time=utc_time(),
            attempt=number,
            engine=attempt.engine,
            limits=msgspec.to_builtins(attempt.limits),
            options=attempt.job.settings(),
            versions=attempt.versions,
        )
        try:
            write_record(self._stores.output.location, record)
        except ModelExportError as error:
            return msgspec.structs.replace(record, message=f"{message}; {error}")
        return record


def _report(record: Record, action: Action, attempts: int) -> JobReport:
    return JobReport(
        record.job,
        record.status.value,
        action.value,
        "" if record.failure is None else record.failure.value,
        record.message,
        attempts,
        record.seconds,
        record.folder,
        record.id,
    )
