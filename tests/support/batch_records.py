"""The records of an output with several jobs, as batches write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modelexport.job_results import Failure, Location, Record, Status, StoredFile, write_record


def write_attempt(
    output: Path, number: int, job: str, status: str = "succeeded", failure: str = "", **fields: Any
) -> Record:
    """A record; a higher number is a later one."""
    versions = {"torch": fields.pop("torch", "2.12.0"), "python": "3.11"}
    result = {"strategy": "fx", "exporter": "dynamo", "attempts": [], "check": {"outcome": "equal"}, "coverage": 1.0}
    record = Record(
        id=f"20261101T0000{number:08d}-{'k' * 16}-{status}{'-' + failure if failure else ''}-00000000",
        job=job,
        model=f"m:{job}",
        key="k" * 64,
        status=Status(status),
        failure=Failure(failure) if failure else None,
        time=f"2026-11-{number:02d}T10:00:00Z",
        versions=versions,
        folder=f"{job}/0",
        files=(StoredFile("model.onnx", 1000 * number, "0"),),
        **{"result": {} if status == "failed" else result, "message": "why" if failure else "", **fields},
    )
    write_record(Location(output), record)
    return record


def write_output(folder: Path) -> Path:
    """Four jobs: at first two work and one fails, and with a later torch one is broken and one new."""
    verified = {"passed": False, "worst_excess": 3.5}
    write_attempt(folder, 1, "a", seconds=1)
    write_attempt(folder, 2, "b", seconds=2, digest="1")
    write_attempt(folder, 3, "c", "failed", "timed_out", seconds=3)
    write_attempt(folder, 11, "a", "failed", "crashed", torch="2.13.0+cpu", message="SIGSEGV <b>")
    write_attempt(folder, 12, "b", torch="2.13.0+cpu", digest="2")
    tried = {"strategy": "htp", "exporter": "torchscript", "error": None}
    result = {**tried, "attempts": [tried], "steps": {"verify": verified}}
    write_attempt(folder, 13, "c", "findings", torch="2.13.0+cpu", result=result)
    write_attempt(folder, 14, "<script>d", torch="2.13.0+cpu")
    return folder
