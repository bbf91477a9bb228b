"""Profile a file: the time and memory of each module call, measured on the graph that the runtime executes."""

from __future__ import annotations

from modelexport.profiling.comparison import (
    CallChange,
    ProfileComparison,
    compare_profiles,
    profile_comparison_schema,
)
from modelexport.profiling.formats import OVERHEAD_NAME, as_collapsed, as_speedscope, as_trace
from modelexport.profiling.profiler import build_report, profile, profile_both
from modelexport.profiling.records import CallProfile, Kernel, Measurement, OwnedKernel, ProfileRow, Timing, middle_runs
from modelexport.profiling.report import Grouping, ProfileReport, Sorting, profile_schema, read_profile

__all__ = [
    "OVERHEAD_NAME",
    "CallChange",
    "CallProfile",
    "Grouping",
    "Kernel",
    "Measurement",
    "OwnedKernel",
    "ProfileComparison",
    "ProfileReport",
    "ProfileRow",
    "Sorting",
    "Timing",
    "as_collapsed",
    "as_speedscope",
    "as_trace",
    "build_report",
    "compare_profiles",
    "middle_runs",
    "profile",
    "profile_both",
    "profile_comparison_schema",
    "profile_schema",
    "read_profile",
]
