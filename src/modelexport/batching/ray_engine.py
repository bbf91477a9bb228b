"""Attempts as tasks of a Ray cluster: each task starts the fresh process of its job on the node that it runs on."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from modelexport.batching.attempts import Attempt, Stores, remove_leftovers, run_attempt
from modelexport.batching.engines import job_pool
from modelexport.display import in_one_line
from modelexport.errors import InputError
from modelexport.job_results import Record
from modelexport.processes import ProcessPool

if TYPE_CHECKING:
    from modelexport.batching.run_batch import RayOptions

_CONNECT_SECONDS = 5.0
_GIBIBYTE = 2**30

# The pool of a Ray worker, which runs one task after the other.
_pools: dict[int, ProcessPool] = {}


class RayEngine:
    """Tasks of a Ray cluster. Ray starts no task again by itself: each attempt is a record.

    Args:
        options: The address of the cluster, and the resources of each job.
        workers: How many jobs are given to the cluster at a time; None for its number of CPUs.
        stores: The output and the cache, which all nodes must reach.

    Raises:
        InputError: Ray is not installed, the cluster does not answer, or a store is not shared.
    """

    name = "ray"

    def __init__(self, options: RayOptions, workers: int | None, stores: Stores) -> None:
        for store in (stores.output, stores.cache):
            if store is not None and not store.location.is_shared:
                raise InputError(f"{store.location.url} is in this process only: jobs on Ray need shared storage")
        try:
            import ray
        except ImportError as error:
            raise InputError(
                "the engine ray needs Ray, which is not installed: pip install 'modelexport[ray]'"
            ) from error
        _check_address(options.address)
        try:
            ray.init(
                address=options.address,
                logging_level=logging.ERROR,
                log_to_driver=False,
                runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}},
            )
        except Exception as error:
            raise InputError(f"the Ray cluster {options.address!r} cannot be used: {in_one_line(error)}") from error
        self._ray: Any = ray
        self._options = options
        cpus = float(ray.cluster_resources().get("CPU", 1))
        self.slots = workers or max(1, int(cpus / max(options.num_cpus, 0.01)))
        self._task = ray.remote(_run_task)
        self._stores = ray.put(stores)
        self._running: dict[Future[Any], Any] = {}

    def submit(self, attempt: Attempt, stores: Stores) -> Future[Record | None]:
        """Begin an attempt."""
        gibibytes = self._options.memory if self._options.memory is not None else attempt.job.memory
        task = self._task.options(
            num_cpus=self._options.num_cpus,
            num_gpus=self._options.num_gpus,
            memory=None if gibibytes is None else int(gibibytes * _GIBIBYTE),
            max_retries=0,
            name=attempt.job.name,
        )
        threads = max(1, int(self._options.num_cpus))
        reference = task.remote(msgspec.json.encode(attempt), self._stores, str(Path.cwd()), threads)
        done: Future[Record | None] = Future()
        future = reference.future()
        self._running[future] = reference
        future.add_done_callback(lambda ended: self._forward(ended, done))
        return done

    def _forward(self, ended: Future[Any], done: Future[Record | None]) -> None:
        self._running.pop(ended, None)
        error = ended.exception()
        if error is not None:
            done.set_exception(error)
        else:
            content = ended.result()
            done.set_result(None if content is None else msgspec.json.decode(content, type=Record))

    def stop(self) -> None:
        """End all attempts that run; they are not recorded."""
        for reference in list(self._running.values()):
            with contextlib.suppress(Exception):
                self._ray.cancel(reference, force=True)

    def close(self) -> None:
        """Disconnect from the cluster."""
        self._ray.shutdown()


def _check_address(address: str) -> None:
    """Fail at once where nothing listens: Ray itself tries for half a minute."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto" or not colon:
        return
    try:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise InputError(
            f"the Ray cluster {address!r} does not answer: {in_one_line(error)}; start one with `ray start --head`"
        ) from error


def _run_task(attempt: bytes, stores: Stores, folder: str, threads: int) -> bytes | None:
    """On a node of the cluster: the attempt, in a process that ends with this worker."""
    if Path(folder).is_dir():
        os.chdir(folder)
    if threads not in _pools:
        remove_leftovers()
        _pools[threads] = job_pool(1, threads)
    record = run_attempt(_pools[threads], msgspec.json.decode(attempt, type=Attempt), stores)
    return None if record is None else msgspec.json.encode(record)
