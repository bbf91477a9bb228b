"""Compare two profiles: which module calls became faster or slower, with noise told from change.

The rule: a call changed if a Mann-Whitney test of the seconds of its runs has p < 0.01, corrected for the number of
calls (Holm), the middle 80 % of its runs do not overlap with those of the other profile, and the medians differ by more
than the resolution of the clock. The test asks whether one profile's runs are larger than the other's; the second
condition leaves out changes within the spread of runs.

Two profiles that were not measured in turns also differ by the load of the machine, which affects all calls alike. So
their times must also differ after division by the common factor, the median of the calls' ratios.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from modelexport.display import Summary, summarized
from modelexport.errors import InputError
from modelexport.hierarchy import json_schema
from modelexport.profiling.records import CallProfile, Timing
from modelexport.profiling.report import ROOT_NAME, ProfileReport

_P = 0.01
_MIDDLE = (10, 90)
# onnxruntime's clock counts microseconds.
_RESOLUTION = 2e-6
_TEST = (
    f"changed: Mann-Whitney p < {_P} after Holm's correction, the 10th to 90th percentiles of the runs do not overlap, "
    "and the medians differ by more than 2 microseconds"
)
_NOT_IN_TURNS = "; also after division by the common factor: the profiles were measured one after the other"

Verdict = Literal["slower", "faster", "same", "added", "removed"]


class CallChange(msgspec.Struct, frozen=True, kw_only=True):
    """A call in two profiles; times are its total, with the calls inside of it.

    Attributes:
        call: Its id.
        class_name: The class of its module.
        verdict: Whether it changed, or is only in one of them.
        before: Its median before; None if it was added.
        after: Its median after; None if it was removed.
        ratio: After by before.
        own_before: The median of its own kernels before.
        own_after: The median of its own kernels after.
        p: The p value, corrected; None if there is nothing to test.
    """

    call: str
    class_name: str
    verdict: Verdict
    before: float | None = None
    after: float | None = None
    ratio: float | None = None
    own_before: float | None = None
    own_after: float | None = None
    p: float | None = None


def _summary(comparison: ProfileComparison) -> Summary:
    facts = {
        "before": comparison.before,
        "after": comparison.after,
        "ratio": comparison.ratio,
        "slower": len(comparison.slower),
        "faster": len(comparison.faster),
    }
    rows = [(c.call or ROOT_NAME, c.class_name, c.verdict, c.ratio) for c in comparison.calls if c.verdict != "same"]
    return Summary(facts, ("call", "class", "verdict", "ratio"), rows)


@summarized(_summary)
class ProfileComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of two profiles.

    Attributes:
        before: The file of the first profile.
        after: The file of the second.
        session_before: The median of its sessions.
        session_after: The median of its sessions.
        session: Whether the session changed.
        common_factor: The median of the ratios of all calls; 1 if the files were measured in turns.
        calls: The calls, those with the largest change of the total time first.
        test: How change is told from noise.
        schema_version: The version of this format.
    """

    before: str
    after: str
    session_before: float
    session_after: float
    session: Verdict
    common_factor: float
    calls: tuple[CallChange, ...]
    test: str
    schema_version: int = 1

    @property
    def ratio(self) -> float:
        """The session's time after by that before."""
        return self.session_after / self.session_before if self.session_before else math.inf

    @property
    def slower(self) -> tuple[CallChange, ...]:
        """The calls that became slower."""
        return tuple(call for call in self.calls if call.verdict == "slower")

    @property
    def faster(self) -> tuple[CallChange, ...]:
        """The calls that became faster."""
        return tuple(call for call in self.calls if call.verdict == "faster")

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON."""
        content: dict[str, Any] = msgspec.to_builtins(self)
        return content


def profile_comparison_schema() -> dict[str, Any]:
    """The JSON Schema of the output of ``modelexport profile --compare --format json``."""
    return json_schema("modelexport comparison of profiles", ProfileComparison)


def compare_profiles(before: ProfileReport, after: ProfileReport, *, in_turns: bool = False) -> ProfileComparison:
    """Compare two profiles call by call.

    Args:
        before: A profile.
        after: A profile of the same model in another file, or of the same file under other settings.
        in_turns: Whether both were measured at the same time, a run of each at a time.

    Raises:
        InputError: They have no module in common.
    """
    given: tuple[object, ...] = (before, after)  # untyped callers pass anything
    for report in given:
        if not isinstance(report, ProfileReport):
            raise InputError(f"a profile is a ProfileReport, not {type(report).__name__}: read_profile reads its JSON")
    first = {call.id: call for call in before.calls}
    second = {call.id: call for call in after.calls}
    both = [call for call in first if call in second]
    if not any(first[call].path for call in both) and len(first) > 1 and len(second) > 1:
        raise InputError(
            f"the profiles of {before.file} and {after.file} have no module in common: they are of different models"
        )
    timed = [call for call in both if first[call].total.p90 and second[call].total.p90]
    values = _holm([_mann_whitney(first[call].total.seconds, second[call].total.seconds) for call in timed])
    tested = dict(zip(timed, values, strict=True))
    ratios = [second[call].total.mean / first[call].total.mean for call in timed if first[call].total.mean]
    factor = 1.0 if in_turns or not ratios else float(np.median(ratios))

    def changed(call: str) -> CallChange:
        old, new = first.get(call), second.get(call)
        known: CallProfile | None = new or old
        p = tested.get(call)
        verdict: Verdict = "same"
        ratio = None
        if old is None:
            verdict = "added"
        elif new is None:
            verdict = "removed"
        elif p is not None:
            verdict = _verdict(old.total, new.total, p, factor)
            ratio = new.total.median / old.total.median if old.total.median else None
        return CallChange(
            call=call,
            class_name="" if known is None else known.class_name,
            verdict=verdict,
            before=None if old is None else old.total.median,
            after=None if new is None else new.total.median,
            ratio=ratio,
            own_before=None if old is None else old.own.median,
            own_after=None if new is None else new.own.median,
            p=p,
        )

    calls = [changed(call) for call in dict.fromkeys((*first, *second))]
    calls.sort(key=lambda call: -abs((call.after or 0.0) - (call.before or 0.0)))
    whole = _mann_whitney(before.session.seconds, after.session.seconds)
    return ProfileComparison(
        before=before.file,
        after=after.file,
        session_before=before.session.median,
        session_after=after.session.median,
        session=_verdict(before.session, after.session, whole, 1.0),
        common_factor=factor,
        calls=tuple(calls),
        test=_TEST if in_turns else _TEST + _NOT_IN_TURNS,
    )


def _verdict(before: Timing, after: Timing, p: float, factor: float) -> Verdict:
    """Whether the times changed, with and without the change by the common factor."""
    (low, high), later = (np.percentile(timing.seconds, _MIDDLE) for timing in (before, after))
    if p >= _P or abs(after.median - before.median) <= _RESOLUTION:
        return "same"
    if all(later[0] / scale > high for scale in (1.0, factor)):
        return "slower"
    return "faster" if all(later[1] / scale < low for scale in (1.0, factor)) else "same"


def _mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """The two-sided p value of a Mann-Whitney test, by the normal approximation with a correction for ties."""
    values = np.asarray((*first, *second))
    m, n = len(first), len(second)
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    # The mean rank of equal values.
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    statistic = ranks[:m].sum() - m * (m + 1) / 2
    ties = (counts**3 - counts).sum() / ((m + n) * (m + n - 1))
    deviation = math.sqrt(m * n / 12 * (m + n + 1 - ties))
    if not deviation:
        return 1.0
    distance = max(abs(statistic - m * n / 2) - 0.5, 0.0)
    return math.erfc(distance / deviation / math.sqrt(2))


def _holm(values: Sequence[float]) -> list[float]:
    """The p values, corrected for their number."""
    corrected = [1.0] * len(values)
    highest = 0.0
    for rank, position in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(values[position] * (len(values) - rank), 1.0))
        corrected[position] = highest
    return corrected
