"""Where attempts run: threads of this process that start local processes, or tasks of a Ray cluster."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from modelexport.batching.attempts import PREPARE, Attempt, Stores, run_attempt
from modelexport.errors import InputError
from modelexport.job_results import Record
from modelexport.processes import ProcessPool


class Engine(Protocol):
    """Runs attempts.

    Attributes:
        name: Its name, for records.
        slots: How many attempts it is given at a time.
    """

    name: str
    slots: int

    def submit(self, attempt: Attempt, stores: Stores) -> Future[Record | None]:
        """Begin an attempt."""

    def stop(self) -> None:
        """End all attempts that run; they are not recorded."""

    def close(self) -> None:
        """Release everything."""


def usable_cpus() -> int:
    """How many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def job_pool(workers: int, cpus: int) -> ProcessPool:
    """A pool for the processes of jobs, which share the CPUs and give the same bytes in each run."""
    threads = str(max(1, cpus // workers))
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {name: os.environ.get(name, threads) for name in names}
    return ProcessPool(PREPARE, {**environment, "PYTHONHASHSEED": "0", "TOKENIZERS_PARALLELISM": "false"})


class LocalEngine:
    """Processes of this machine, some at a time.

    Args:
        workers: How many; None for the number of CPUs.

    Raises:
        InputError: It is not a positive number.
    """

    name = "local"

    def __init__(self, workers: int | None = None) -> None:
        cpus = usable_cpus()
        self.slots = cpus if workers is None else workers
        if self.slots < 1:
            raise InputError(f"{self.slots} workers cannot do anything: give at least 1")
        self.pool = job_pool(self.slots, cpus)
        self._threads = ThreadPoolExecutor(self.slots, thread_name_prefix="modelexport-batch")

    def submit(self, attempt: Attempt, stores: Stores) -> Future[Record | None]:
        """Begin an attempt."""
        return self._threads.submit(run_attempt, self.pool, attempt, stores)

    def stop(self) -> None:
        """End all attempts that run; they are not recorded."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.pool.stop_all()

    def close(self) -> None:
        """End the threads and the process that starts the jobs."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self.pool.close()
