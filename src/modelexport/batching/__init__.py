"""Export many models: jobs, keys, a plan, engines and a coordinator; torch is imported in processes of jobs only."""

from __future__ import annotations

from modelexport.batching.coordinator import BatchProgress, JobReport
from modelexport.batching.jobs import Job
from modelexport.batching.planning import DEFAULT_TIMEOUT
from modelexport.batching.run_batch import ENGINES, BatchReport, RayOptions, batch, batch_schema, export_batch

__all__ = [
    "DEFAULT_TIMEOUT",
    "ENGINES",
    "BatchProgress",
    "BatchReport",
    "Job",
    "JobReport",
    "RayOptions",
    "batch",
    "batch_schema",
    "export_batch",
]
