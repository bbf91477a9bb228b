"""Which calls of two profiles changed, and which differences are noise."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.unit.profiling.conftest import Profiler

from modelexport import ProfileReport
from modelexport.errors import InputError
from modelexport.profiling.comparison import compare_profiles
from modelexport.profiling.records import CallProfile, Timing, timing

RUNS = 20


def report(like: ProfileReport, seed: int, factor: float, slow: str | None = None) -> ProfileReport:
    """The same calls with made-up times: each about 1 ms, times `factor`, and three times that for the slow call."""
    random = np.random.default_rng(seed)

    def times(scale: float) -> Timing:
        return timing(1e-3 * scale * random.normal(1, 0.05, RUNS), range(RUNS))

    def changed(call: CallProfile) -> CallProfile:
        return msgspec.structs.replace(call, total=times(3 * factor if call.id == slow else factor))

    return msgspec.structs.replace(
        like, calls=tuple(changed(call) for call in like.calls), session=times(50 * factor), file=f"{seed}.onnx"
    )


def test_only_the_call_that_changed_is_named(profiled: Profiler) -> None:
    like = profiled()
    slow = "encoder.layer.1"
    found = compare_profiles(report(like, 1, 1.0), report(like, 2, 1.0, slow), in_turns=True)
    assert [change.call for change in found.slower] == [slow]
    assert found.calls[0].call == slow
    assert found.slower[0].ratio == pytest.approx(3, rel=0.1)
    assert not found.faster
    assert found.session == "same"
    back = compare_profiles(report(like, 2, 1.0, slow), report(like, 1, 1.0), in_turns=True)
    assert [change.call for change in back.faster] == [slow]


def test_load_of_the_machine_does_not_count_as_change_of_calls_not_measured_in_turns(profiled: Profiler) -> None:
    like = profiled()
    before, after = report(like, 1, 1.0), report(like, 2, 1.5, "encoder.layer.0")
    found = compare_profiles(before, after)
    assert found.common_factor == pytest.approx(1.5, rel=0.05)
    assert [change.call for change in found.slower] == ["encoder.layer.0"]
    assert found.session == "slower"
    in_turns = compare_profiles(before, after, in_turns=True)
    assert len(in_turns.slower) == len(like.calls)


def test_few_runs_show_no_change(profiled: Profiler) -> None:
    like = profiled()
    short, longer = (timing([base, base + 1e-4, base + 2e-4], range(3)) for base in (1e-3, 9e-3))

    def with_total(total: Timing) -> ProfileReport:
        calls = tuple(msgspec.structs.replace(call, total=total) for call in like.calls)
        return msgspec.structs.replace(like, calls=calls)

    assert not compare_profiles(with_total(short), with_total(longer), in_turns=True).slower


def test_calls_of_one_profile_only_are_added_or_removed(profiled: Profiler) -> None:
    like = profiled()
    shorter = msgspec.structs.replace(like, calls=like.calls[:-1])
    last = like.calls[-1].id
    assert [c.call for c in compare_profiles(like, shorter).calls if c.verdict == "removed"] == [last]
    assert [c.call for c in compare_profiles(shorter, like).calls if c.verdict == "added"] == [last]


def test_profile_of_another_model_is_refused(profiled: Profiler) -> None:
    with pytest.raises(InputError, match="no module in common"):
        compare_profiles(profiled(), profiled("cnn"))


def test_paths_instead_of_profiles_are_an_input_error(profiled: Profiler) -> None:
    with pytest.raises(InputError, match="a profile is a ProfileReport, not str"):
        compare_profiles(profiled(), "other.json")  # type: ignore[arg-type]
