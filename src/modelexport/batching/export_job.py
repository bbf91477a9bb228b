"""One job, in the process of its own: load the model, export it, run the steps. The only module here with torch."""

from __future__ import annotations

import importlib.metadata
import os
import random
import site
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec

from modelexport.batching.file_hashes import FileHashes
from modelexport.batching.jobs import Job
from modelexport.batching.revisions import source_root
from modelexport.errors import ModelExportError, causes_of
from modelexport.input_options import read_dynamic, read_exceptions

FILE_NAME = "model.onnx"
# Beside the folder of a job.
IMPORTS = "imports.json"
# The folders of files that need no hash: the key has the version of Python and the source of this package, and the
# result the versions of distributions.
_COVERED = tuple(
    f"{folder}{os.sep}"
    for folder in (
        Path(os.__file__).parent,
        Path(__file__).parents[1],
        *site.getsitepackages(),
        site.getusersitepackages(),
    )
)
# Of the time for a job, the part after which no other attempt to export it begins.
_ATTEMPTS_PART = 0.7
_SERVER_ERROR = 500
_TOO_MANY_REQUESTS = 429
# Errors of HTTP libraries that are neither ConnectionError nor TimeoutError.
_TRANSPORT_ERRORS = ("TransportError", "TimeoutException", "ConnectionError", "Timeout", "ChunkedEncodingError")


class ExportPayload(msgspec.Struct, frozen=True):
    """What the process of a job is given: the job, the folder to write to, and the seconds that it has."""

    job: Job
    folder: str
    seconds: float | None = None


def prepare() -> None:
    """Import what every job needs, once, in the process that forks those of the jobs."""
    import onnxscript.function_libs.torch_lib.ops  # noqa: F401
    import torch
    import torch.onnx  # noqa: F401

    import modelexport.verification  # noqa: F401

    # It changes nothing, and imports torch's tracer: half of the time of a small export.
    torch.compiler.set_stance("default")
    # Threads do not survive a fork.
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


def export_job(payload: Any) -> dict[str, Any]:
    """Do one job.

    Args:
        payload: An `ExportPayload` in JSON types.

    Returns:
        What there is to say of the files in the folder.
    """
    given = msgspec.convert(payload, ExportPayload)
    try:
        return _export(given)
    finally:
        _record_imports(given)


def _export(given: ExportPayload) -> dict[str, Any]:
    job, folder = given.job, Path(given.folder)
    _set_seeds(job.seed)
    from modelexport.batching.steps import StepContext, run_step
    from modelexport.exporting import export_model
    from modelexport.sources.inputs import choose_inputs
    from modelexport.sources.loaders import LoadOptions, load_model

    try:
        sourced = load_model(job.model, LoadOptions(**job.model_options()))
        chosen = choose_inputs(sourced, **job.input_options())
    except ModelExportError as error:
        if is_network_error(error):
            error.outcome_attributes = {"network": True}  # type: ignore[attr-defined]  # read by `processes`
        raise
    # Now as well: the process may be killed, and files may change.
    _record_imports(given)
    _say(f"loaded {job.model}: {type(sourced.model).__name__}")
    result = export_model(
        sourced.model,
        chosen.inputs,
        folder / FILE_NAME,
        progress=lambda event: _say(f"{event.step} {event.seconds:.2f} s {event.detail}") if event.finished else None,
        **_export_options(job, given.seconds),
    )
    content = result.as_dict()
    steps = {}
    context = StepContext(folder / FILE_NAME, folder, sourced.model, chosen.inputs, private=job.private)
    # The page shows the reports of the other steps.
    for step in sorted(job.steps, key=lambda step: step == "view"):
        steps[step] = run_step(step, context)
        _say(f"{step}: {steps[step]}")
    _remove_hidden(folder)
    kept = ("attempts", "check", "dynamic_axes", "notes")
    return {
        **content["summary"],
        **{name: content[name] for name in kept},
        "seconds_by_step": {step.step: round(step.seconds, 3) for step in result.steps},
        "model_class": type(sourced.model).__qualname__,
        "notes": [*sourced.notes, *chosen.notes, *result.notes],
        "wrong": result.check.is_wrong,
        "steps": steps,
    }


def _record_imports(given: ExportPayload) -> None:
    """Write what this process imported until now: distributions with versions, and other files with hashes."""
    from modelexport.storage import write_text

    file, root = Path(given.folder).with_name(IMPORTS), source_root(given.job.model)
    modules = dict(sys.modules)
    distributions = importlib.metadata.packages_distributions().items()
    names = {f"{name}==" for package, found in distributions if package in modules for name in found}
    paths = [getattr(module, "__dict__", {}).get("__file__") for module in modules.values()]
    # A module that raises while it is imported is no longer there.
    for error in causes_of(sys.exception()):
        paths += [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
        paths.append(getattr(error, "filename", None))
    for path in paths:
        if isinstance(path, str) and not path.startswith(_COVERED) and os.path.isfile(path):  # noqa: PTH113  any text
            names.add(os.path.relpath(os.path.realpath(path), root))
    earlier = msgspec.json.decode(file.read_bytes()) if file.exists() else {}
    found = {**FileHashes(None).of_imports(names - earlier.keys(), root), **earlier}
    write_text(file, msgspec.json.encode(found, order="sorted").decode())


def _export_options(job: Job, seconds: float | None) -> dict[str, Any]:
    options: dict[str, Any] = {
        "strategy": job.strategy,
        "exporter": job.exporter,
        "optimize": job.optimize,
        "dynamic": read_dynamic(job.dynamic),
        "allow_specialization": job.allow_specialization,
        "torch_nn_exceptions": read_exceptions(job.torch_nn_exceptions),
        "boundaries": job.boundary,
        "advanced_resolution": job.enable_advanced_resolution,
        "external_data": job.external_data,
        "private": job.private,
        "check": job.check,
        "probes": job.probes,
    }
    if seconds is not None:
        options["timeout"] = max(1.0, _ATTEMPTS_PART * seconds)
    if job.check_bytes is not None:
        options["check_bytes"] = job.check_bytes
    if job.opset is not None:
        options["opset_version"] = job.opset
    if not job.torch_names:
        options["output_names"] = "auto"
    return options


def _set_seeds(seed: int) -> None:
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _remove_hidden(folder: Path) -> None:
    """Remove the lock files of transactions, which are no part of the result."""
    for path in folder.rglob(".*"):
        if path.is_file():
            path.unlink()


def _say(text: str) -> None:
    """Print a line to the log of the job."""
    sys.stdout.write(f"{text.rstrip()}\n")
    sys.stdout.flush()


def is_network_error(error: BaseException) -> bool:
    """Whether an error, or one that it was raised from, comes from the network and may pass."""
    for cause in causes_of(error):
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if isinstance(status, int):
            return status >= _SERVER_ERROR or status == _TOO_MANY_REQUESTS
        names = {kind.__name__ for kind in type(cause).__mro__}
        if isinstance(cause, ConnectionError | TimeoutError) or names.intersection(_TRANSPORT_ERRORS):
            return True
    return False
