"""Kill exports at random points and run many side by side, and check that no set of files is ever mixed or lost.

Every export writes a graph, a data file and a sidecar. A set is right where its files are, byte by byte, those of one
export that ran alone.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import torch
from tests.support.faster_exports import faster_exports

import modelexport
from modelexport.exporting import ProgressEvent

_SIZES = (16, 24, 32)
# The names of data files depend on the target's, so all targets have one name.
_NAME = "model.onnx"
_TARGETS = 3
# In this time after its begin, the step that writes is killed.
_WRITE_SECONDS = 0.05

FileSet = dict[str, bytes]


def model(variant: int) -> tuple[torch.nn.Module, torch.Tensor]:
    """A small model with the same weights every time."""
    size = _SIZES[variant]
    block = torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.GELU(), torch.nn.LayerNorm(size))
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape))
    return block.eval(), torch.ones(2, size)


def export(variant: int, target: Path, progress: Callable[[ProgressEvent], None] | None = None) -> None:
    """Write one set of files."""
    block, inputs = model(variant)
    modelexport.export_model(block, inputs, target, external_data=True, overwrite=True, progress=progress, check="off")


def read_set(target: Path) -> FileSet:
    """The files of a target, without what a killed export left."""
    return {path.name: path.read_bytes() for path in target.parent.glob(f"{target.stem}[-._]*") if path.is_file()}


class Durability:
    """The expected sets, and what was found wrong.

    Args:
        folder: Where to export.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failures: list[str] = []
        self.expected: list[FileSet] = []
        alone = folder / "alone" / _NAME
        alone.parent.mkdir()
        for variant in range(len(_SIZES)):
            export(variant, alone)
            self.expected.append(read_set(alone))

    def check(self, target: Path, what: str) -> None:
        """Record a failure unless a target has exactly the files of one export, and its hierarchy."""
        try:
            document = modelexport.read_model(target).document
        except modelexport.ModelExportError as error:
            self.failures.append(f"{what}: {error}")
            return
        if document is None or read_set(target) not in self.expected:
            self.failures.append(f"{what}: {target} has a mixed set of files: {sorted(read_set(target))}")

    def kill(self, count: int, seed: int) -> Counter[str]:
        """Kill `count` processes that export to one target, half of them while they write."""
        target = self.folder / "killed" / _NAME
        target.parent.mkdir()
        started = time.monotonic()
        export(0, target)
        period = time.monotonic() - started
        draw = random.Random(seed)
        found: Counter[str] = Counter()
        for number in range(count):
            while_writing = bool(number % 2)
            seconds = draw.uniform(0, _WRITE_SECONDS if while_writing else period)
            _kill_exports(target, seconds, while_writing=while_writing)
            found["kills"] += 1
            found["left a temporary folder"] += any(target.parent.glob(".modelexport-*"))
            found["left a journal"] += any(target.parent.glob(".modelexport-*/commit.json"))
            self.check(target, f"kill {number} after {seconds:.4f} s")
        export(0, target)
        if any(target.parent.glob(".modelexport-*")):
            self.failures.append("an export after the kills left temporary folders behind")
        return found

    def side_by_side(self, pool: Executor, name: str, workers: int, exports: int) -> None:
        """Export in several workers at once: each to a file of its own, and all to a few shared files."""
        shared = self.folder / f"{name}-shared"
        for number in range(_TARGETS):
            (shared / str(number)).mkdir(parents=True)
        jobs = [(self.folder / f"{name}-{worker}", shared, worker, exports) for worker in range(workers)]
        for worker, variants in enumerate(pool.map(_worker, jobs)):
            for position, (variant, files) in enumerate(variants):
                if files != self.expected[variant]:
                    self.failures.append(f"{name} {worker}: export {position} gave other files than alone")
        for target in shared.glob(f"*/{_NAME}"):
            self.check(target, f"{name}: shared file")


def _kill_exports(target: Path, seconds: float, *, while_writing: bool) -> None:
    """Fork a process that exports again and again, and kill it after some time, or so long after a write began."""
    began, begin = os.pipe()
    child = os.fork()
    if child == 0:

        def report(event: ProgressEvent) -> None:
            if event.step == "write" and not event.finished:
                os.write(begin, b".")

        for variant in itertools.cycle(range(len(_SIZES))):
            export(variant, target, report)
    os.close(begin)
    if while_writing:
        os.read(began, 1)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(began)


def _worker(job: tuple[Path, Path, int, int]) -> list[tuple[int, FileSet]]:
    """Export in turn to the worker's own file and to a shared one; the sets of its own file."""
    own, shared, worker, exports = job
    own.mkdir()
    found = []
    for number in range(exports):
        variant = (worker + number) % len(_SIZES)
        if number % 2:
            export(variant, own / _NAME)
            found.append((variant, read_set(own / _NAME)))
        else:
            export(variant, shared / str(number % _TARGETS) / _NAME)
    return found


def run(kills: int, threads: int, processes: int, exports: int, seed: int, folder: Path) -> Iterator[str]:
    """Run everything; yields lines with totals, then one for each failure."""
    torch.set_num_threads(1)
    checked = Durability(folder)
    started = time.monotonic()

    def line(text: str, failures_before: int) -> str:
        failed = len(checked.failures) - failures_before
        return f"{text}: {failed} failures ({time.monotonic() - started:.0f} s)"

    found = checked.kill(kills, seed)
    yield line(", ".join(f"{amount} {name}" for name, amount in found.items()) or "0 kills", 0)
    before = len(checked.failures)
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("fork")) as pool:
        checked.side_by_side(pool, "process", processes, exports)
    yield line(f"{processes} processes, {exports} exports each", before)
    before = len(checked.failures)
    with ThreadPoolExecutor(threads) as pool:
        checked.side_by_side(pool, "thread", threads, exports)
    yield line(f"{threads} threads, {exports} exports each", before)
    yield from (f"FAILED {failure}" for failure in checked.failures)


def main(arguments: Iterable[str] | None = None) -> int:
    """Run from the command line; 1 where something failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=500, help="how many exports to kill (default: 500)")
    parser.add_argument("--threads", type=int, default=8, help="threads at once (default: 8)")
    parser.add_argument("--processes", type=int, default=8, help="processes at once (default: 8)")
    parser.add_argument(
        "--exports", type=int, default=25, help="exports of each, in turn to its own and to shared files"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random points (default: 0)")
    options = vars(parser.parse_args(None if arguments is None else list(arguments)))
    failed = False
    with tempfile.TemporaryDirectory(prefix="modelexport-durability-") as folder, faster_exports():
        for line in run(**options, folder=Path(folder)):
            print(line, flush=True)
            failed = failed or line.startswith("FAILED")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
