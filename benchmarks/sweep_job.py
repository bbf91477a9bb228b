"""The functions of the sweep that run in processes of the engine: the list of models, and the sweep of one."""

from __future__ import annotations

import logging
from typing import Any

from benchmarks.sweep_process import attempted

# Kept while the process lives: what is patched here stays patched in all processes that are forked from it.
_kept: list[Any] = []


def prepare() -> None:
    """Import the libraries, before processes are forked."""
    import torch
    from tests.support.faster_exports import faster_exports

    torch.set_num_threads(1)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    patches = faster_exports()
    patches.__enter__()
    _kept.append(patches)
    import benchmarks.sweep_steps  # noqa: F401
    import transformers.modeling_utils  # noqa: F401  two seconds in each process otherwise
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    # What every export does first.
    ONNXRegistry.from_torchlib()


def list_names(_: Any) -> list[str]:
    """The names of all models."""
    from benchmarks.sweep_candidates import list_candidates

    return [str(candidate) for candidate in list_candidates()]


def sweep(payload: Any) -> dict[str, Any]:
    """All that there is to say of one model: see `sweep_one`."""
    from benchmarks.sweep_candidates import Candidate
    from benchmarks.sweep_steps import Limits, sweep_one

    limits = Limits(payload["seconds"], payload["memory"])
    candidate = Candidate.parse(payload["name"])
    return attempted(lambda: sweep_one(candidate, limits, payload["known"], payload["measured"]))
