"""What must hold of every profile, computed from its records alone."""

from __future__ import annotations

import numpy as np

from modelexport.profiling import ProfileReport


def violations(report: ProfileReport) -> list[str]:
    """What does not hold: each kernel has an owner, times add up in each run, and no call exceeds the one around it."""
    calls = {call.id: call for call in report.calls}
    found = [f"{kernel.name} has no owner" for kernel in report.kernels if kernel.kind == "unmatched"]
    found += [f"{kernel.name} has an unknown owner" for kernel in report.kernels if kernel.call not in calls]
    session = np.asarray(report.session.seconds)
    added = np.sum([call.own.seconds for call in report.calls], axis=0) + report.overhead.seconds
    if np.abs(added / session - 1).max() > 0.01:
        found.append("own times and overhead are not the session's time")
    if min(report.overhead.seconds) < -0.01 * session.max():
        found.append("kernels take longer than the session")
    inside = {call.id: np.zeros(len(session)) for call in report.calls}
    for call in report.calls:
        if call.parent is not None:
            inside[call.parent] += call.total.seconds
    found += [f"{call} takes less than the calls in it" for call in calls if _exceeds(inside[call], calls[call].total)]
    if {slice_.kernel for slice_ in report.timeline} != set(range(len(report.kernels))):
        found.append("the timeline does not have all kernels")
    return found


def _exceeds(inner: np.ndarray, total: object) -> bool:
    return bool((inner > np.asarray(total.seconds) + 1e-9).any())  # type: ignore[attr-defined]
