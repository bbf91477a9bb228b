"""Why a model of the sweep failed at a step: the common text of its error, and whose fault it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Record = Mapping[str, Any]

# The answers to whose fault a failure is.
MISSING = "a library that is not installed"
TORCH, TRANSFORMERS, ONNXRUNTIME, OURS = "torch", "transformers", "onnxruntime", "ours"
INPUTS, SHRINKING, LIMIT = "the sweep's inputs", "the sweep's shrinking", "the sweep's limits"
ALONE = "no model by itself"

_NOT_INSTALLED = re.compile(r"(?:ImportError|ModuleNotFoundError|NameError): ")
_NO_MODEL = re.compile(r"has no forward|cannot be run by itself|__init__\(\) missing \d+ required positional")
_LIMIT = re.compile(r"TimeLimit: |MemoryError|can't allocate memory|NotSmallError: |ProcessDied: ")
_OURS = re.compile(r"(?:Contract|ModelExport|Attribution|Storage)Error: ")


def works(record: Record, step: str) -> bool:
    """Whether a step ran and succeeded."""
    return step in record and "error" not in record[step]


def whose(record: Record, step: str) -> str:
    """Whose fault it is that a step failed: ``built``, ``forward`` or ``ours``."""
    error = record[step]["error"]
    if step == "ours":
        return _whose_export(record, error)
    if _NOT_INSTALLED.search(error):
        return MISSING
    if _NO_MODEL.search(error):
        return ALONE
    if step == "forward":
        return INPUTS
    # What the library's own settings do not build either is not for the sweep to repair.
    unchanged = record[step].get("unchanged", error)
    if not _LIMIT.search(unchanged) and "unchanged" in record[step]:
        return f"the default configuration of {record['source']}"
    return LIMIT if _LIMIT.search(error) else SHRINKING


def _whose_export(record: Record, error: str) -> str:
    others = ("plain", "plain_no_cache", "transformers", "torchscript")
    if any(works(record, way) for way in others) or _OURS.search(_decisive(error)[1]):
        return OURS
    if _LIMIT.search(error):
        return LIMIT
    name, text = _decisive(error)
    # transformers' exporter calls torch's.
    is_transformers = "(transformers" in name and "transformers" in text.rpartition(" << ")[2]
    return TRANSFORMERS if is_transformers else TORCH


def whose_wrong_file(record: Record) -> str:
    """Whose fault it is that a file which was written is not shown to be right."""
    ours = record["ours"]["value"]
    outcome = ours["check"]["outcome"]
    if outcome in ("no_kernel", "equal_unoptimized"):
        return ONNXRUNTIME
    if outcome in ("loaded", "unchecked"):
        return "not run"
    if outcome == "unstable":
        return "rounding decides"
    if record.get("same_bytes", {}).get("value") is False:
        return OURS
    return TRANSFORMERS if ours["exporter"] == "transformers" else TORCH


def _decisive(error: str) -> tuple[str, str]:
    """The attempt whose error counts: that of transformers' exporter if several were tried, otherwise the first."""
    attempts = [attempt.partition(": ") for attempt in error.partition(": ")[2].split(" || ")]
    if len(attempts) == 1:
        return "", error
    name, _, text = next((attempt for attempt in attempts if "(transformers" in attempt[0]), attempts[0])
    return name, text


def cause(error: str) -> str:
    """The common text of errors with one cause: class and message of the innermost error, without names and numbers.

    If several exporters were tried, the error of transformers' exporter counts, otherwise the first.
    """
    text = _decisive(error)[1].rpartition(" << ")[2]
    # If synthesized inputs failed, the answer of the model to the first attempt.
    answered = re.search(r"forward answered to .*?: (\w+: .*?)(?:; to |$)", text)
    if answered is not None:
        text = answered.group(1)
    text = re.sub(r"0x[0-9a-f]+", "…", text)
    text = re.sub(r"'[^']{1,80}'|\"[^\"]{1,80}\"|`[^`]{1,80}`", "'…'", text)
    text = re.sub(r"[\[(][^\[\]()]*\d[^\[\]()]*[\])]", "(…)", text)
    text = re.sub(r"-?\d+(?:\.\d+)?", "#", text)
    text = re.sub(r"([|<>*_])", r"\\\1", text)
    return text[:160].strip() + ("…" if len(text) > 160 else "")
