"""Attempts: try candidates in order, each in its variants, until one is accepted or the time is used up."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence

from modelexport.attempt_report import AttemptReport
from modelexport.capture import (
    TORCHSCRIPT,
    Capture,
    Specialization,
    find_data_reads,
    library_output,
    recorded_warnings,
)
from modelexport.display import shortened
from modelexport.errors import InputError, ModelExportError, StrategyIncompatibleError
from modelexport.strategies.attempt_outcomes import AttemptOutcomes, PlannedAttempt
from modelexport.strategies.base import CaptureRequest
from modelexport.strategies.selection import Candidate
from modelexport.torch_support import TORCH_LOCK, evaluation_mode, preserved_state

DEFAULT_TIMEOUT = 1800.0
# The number of characters that are kept of what libraries print: torch may print a whole graph several times.
_MOST_OUTPUT = 10_000


class Attempts:
    """The attempts of one export.

    Args:
        timeout: Seconds for all attempts together, None for no limit. When they are used up, no further attempt begins;
            a running one is not interrupted.

    Attributes:
        reports: All attempts so far, in order.

    Raises:
        InputError: The timeout is not a positive number.
    """

    def __init__(self, timeout: float | None) -> None:
        given: object = timeout  # untyped callers pass anything
        if given is not None and not (isinstance(given, int | float) and given > 0):
            raise InputError(f"timeout is {timeout!r}: give a positive number of seconds, or None for no limit")
        self.reports: list[AttemptReport] = []
        # The dynamic axes at other sizes of which a file was wrong.
        self.wrong_axes: set[str] = set()
        self._timeout = math.inf if timeout is None else timeout
        self._started = time.perf_counter()

    @property
    def is_time_up(self) -> bool:
        """Whether no further attempt may begin; the first one always may."""
        return bool(self.reports) and time.perf_counter() - self._started > self._timeout

    def captures(
        self, candidates: Sequence[Candidate], request: CaptureRequest, axes: str = "", *, last_resorts: bool = True
    ) -> Iterator[Capture]:
        """Yield the capture of each candidate that succeeds; the last of `reports` is its attempt.

        The caller takes the next one only where it cannot use this one, and says why with `reject_last`. A trace that
        turns values which depend on the inputs into constants is accepted as the first choice, or with
        `allow_specialization`. As a fallback for an exporter that would have kept them, it is used only where nothing
        depends on them; the caller compares the file of an `unproven` capture on inputs with other values.

        Args:
            candidates: The strategies to try, in order.
            request: The model to capture.
            axes: The dynamic axes of the request, for the description of each attempt.
            last_resorts: Whether to try the `last_variants` of the strategies.

        Raises:
            SpecializationError: Only such a trace succeeded.
            AllStrategiesFailedError: All of several strategies failed.
            StrategyIncompatibleError: The only strategy failed with each of its exporters.
            InputError: The inputs do not fit the model, so no other candidate can succeed.
        """
        outcomes = AttemptOutcomes(request)
        pending = _plan(candidates, request, last_resorts=last_resorts)
        while pending:
            attempt = pending.pop(0)
            candidate = attempt.candidate
            if attempt.is_last_resort and outcomes.is_hopeless(attempt):
                continue
            described = _joined(str(attempt.variant), axes)
            started = time.perf_counter()
            obstacle = outcomes.obstacle(attempt) or self._time_used_up(candidate)
            with library_output(shown=bool(request.options.get("verbose"))) as printed:
                found = obstacle or _try(attempt, request)
            outcome = found if isinstance(found, ModelExportError) else outcomes.judge(attempt, *found)
            seconds = time.perf_counter() - started
            if isinstance(outcome, Capture):
                used = dataclasses.replace(candidate, exporter=outcome.exporter)
                self.record(used, _joined(described, outcome.variant), None, seconds, printed=printed)
                yield outcome
                outcomes.reject(attempt, self.reports[-1], outcome.unproven)
                following = _after_rejection(attempt, request) if outcome.unproven is None else []
            else:
                report = self.record(candidate, described, outcome, seconds, tried=obstacle is None, printed=printed)
                outcomes.fail(attempt, report, outcome)
                following = _after_failure(attempt, outcome)
            pending[:0] = following
        if not outcomes.has_file:
            raise outcomes.error(self.reports)

    def reject_last(self, reason: str, axes: Iterable[str] = ()) -> AttemptReport:
        """Record that the graph of the last attempt, which succeeded, cannot be used; wrong with these dynamic axes."""
        self.wrong_axes.update(axes)
        self.reports[-1] = dataclasses.replace(self.reports[-1], error=reason)
        return self.reports[-1]

    def choose(self, attempt: AttemptReport) -> None:
        """Take an attempt that was rejected after all, because no other is better: it becomes the last one."""
        self.reports = [report for report in self.reports if report is not attempt]
        self.reports.append(dataclasses.replace(attempt, error=None))

    def skip(self, candidates: Iterable[Candidate], variant: str) -> None:
        """Record attempts for which no time is left."""
        for candidate in candidates:
            self.record(candidate, variant, self._time_used_up(candidate), tried=False)

    def record(
        self,
        candidate: Candidate,
        variant: str,
        error: ModelExportError | str | None,
        seconds: float = 0.0,
        *,
        tried: bool = True,
        printed: Iterable[str] = (),
    ) -> AttemptReport:
        """Add an attempt to the list; `error` says why its graph is not the one to write."""
        why = None if error is None else str(error)
        name, exporter, reason = candidate.strategy.name, candidate.exporter, candidate.reason
        output = shortened("".join(printed), _MOST_OUTPUT)
        self.reports.append(AttemptReport(name, exporter, reason, why, variant, seconds, tried, output))
        return self.reports[-1]

    def _time_used_up(self, candidate: Candidate) -> ModelExportError | None:
        if not self.is_time_up:
            return None
        return StrategyIncompatibleError(
            candidate.strategy.name,
            f"not tried, because the {self._timeout:g} s for all attempts (timeout, --timeout) were used up.",
            "",
        )


def _plan(candidates: Sequence[Candidate], request: CaptureRequest, *, last_resorts: bool) -> list[PlannedAttempt]:
    """The attempts to make, in order. Each may be followed by one that its outcome asks for.

    A strategy that was requested by name uses the values of the inputs only with consent; `auto` asks for consent where
    they help.
    """
    exporters = [candidate.exporter for candidate in candidates]
    first = [one for i, one in enumerate(candidates) if one.exporter not in exporters[:i]]
    # With the exporter of an earlier candidate: they would probably fail as that one did.
    repeated = [one for one in candidates if one not in first]
    variants = [(one, v) for one in candidates for v in one.strategy.last_variants(request.model, one.exporter)]
    if not request.allow_specialization and len({one.strategy.name for one in candidates}) == 1:
        variants = [(one, variant) for one, variant in variants if not variant.input_values]
    return [
        *(PlannedAttempt(one) for one in first),
        *(PlannedAttempt(*one, is_last_resort=True) for one in variants if last_resorts),
        *(PlannedAttempt(one) for one in repeated),
    ]


def _after_failure(attempt: PlannedAttempt, error: ModelExportError) -> list[PlannedAttempt]:
    """The variant that the error names."""
    retry = error.retry if isinstance(error, StrategyIncompatibleError) else None
    return [PlannedAttempt(attempt.candidate, retry)] if retry is not None else []


def _after_rejection(attempt: PlannedAttempt, request: CaptureRequest) -> list[PlannedAttempt]:
    """The same without torch's optimizer, which may be what is wrong with the file."""
    if attempt.candidate.exporter == TORCHSCRIPT or not attempt.options(request).get("optimize", True):
        return []
    return [PlannedAttempt(attempt.candidate, dataclasses.replace(attempt.variant, unoptimized=True))]


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _try(attempt: PlannedAttempt, request: CaptureRequest) -> tuple[Capture, Specialization] | ModelExportError:
    """Return the capture and what tracing fixed in it, or the error."""
    candidate = attempt.candidate
    options = {**attempt.options(request), **request.axis_options(candidate.exporter)}
    request = dataclasses.replace(request, exporter=candidate.exporter, variant=attempt.variant, options=options)
    mode = contextlib.nullcontext() if request.training else evaluation_mode(request.model)
    try:
        with TORCH_LOCK, mode:
            with preserved_state(request.model), recorded_warnings(request.model) as warned:
                capture = candidate.strategy.capture(request)
            if not capture.fixes_values:
                return capture, Specialization(tuple(warned), ())
            reads = find_data_reads(request.model, request.args, request.kwargs, training=request.training)
            return capture, Specialization(tuple(warned), reads)
    except InputError:
        raise
    except ModelExportError as error:
        _free_local_variables(error)
        return error
    finally:
        if request.written is not None:
            # An exporter that traces runs the model on its own weights.
            request.written.restore()


def _free_local_variables(error: BaseException | None) -> None:
    """Keep the tracebacks of a chain of exceptions, but not the graphs and tensors that their frames refer to."""
    pending, seen = [error], set[int]()
    while pending:
        current = pending.pop()
        if current is not None and id(current) not in seen:
            seen.add(id(current))
            traceback.clear_frames(current.__traceback__)
            pending += [current.__cause__, current.__context__]
