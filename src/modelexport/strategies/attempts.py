"""Attempts: try candidates in order, each in its variants, until one is accepted or the time is used up."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from modelexport.attempt_report import PLAIN, AttemptReport, Variant
from modelexport.capture import TORCHSCRIPT, Capture, Specialization, find_data_reads, recorded_warnings
from modelexport.errors import InputError, ModelExportError, StrategyIncompatibleError
from modelexport.strategies.attempt_outcomes import AttemptOutcomes
from modelexport.strategies.base import CaptureRequest
from modelexport.strategies.selection import Candidate
from modelexport.torch_support import TORCH_LOCK, evaluation_mode, preserved_state

DEFAULT_TIMEOUT = 1800.0


class _Attempt(NamedTuple):
    """An attempt to make; a last resort is tried only where it has a chance."""

    candidate: Candidate
    variant: Variant = PLAIN
    is_last_resort: bool = False

    def options(self, request: CaptureRequest) -> Mapping[str, Any]:
        """The options of the exporter in this attempt."""
        return {**request.options, "optimize": False} if self.variant.unoptimized else request.options


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
        `allow_specialization`; it is not a fallback for an exporter that would have kept them.

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
        outcomes = AttemptOutcomes(allow_specialization=request.allow_specialization)
        pending = _plan(candidates, request.model, last_resorts=last_resorts)
        while pending:
            attempt = pending.pop(0)
            candidate, variant = attempt.candidate, attempt.variant
            if attempt.is_last_resort and outcomes.is_hopeless(candidate):
                continue
            described = _joined(str(variant), axes)
            started = time.perf_counter()
            obstacle = outcomes.obstacle(candidate, variant) or self._time_used_up(candidate)
            found = obstacle or _try(attempt, request)
            outcome = found if isinstance(found, ModelExportError) else outcomes.judge(candidate, *found)
            seconds = time.perf_counter() - started
            if isinstance(outcome, Capture):
                used = dataclasses.replace(candidate, exporter=outcome.exporter)
                self.record(used, _joined(described, outcome.variant), None, seconds)
                yield outcome
                outcomes.reject(candidate, variant, self.reports[-1])
                following = _after_rejection(attempt, request)
            else:
                report = self.record(candidate, described, outcome, seconds, tried=obstacle is None)
                outcomes.fail(report, outcome, is_last_resort=attempt.is_last_resort)
                following = _after_failure(attempt, outcome)
            pending[:0] = following
        if not outcomes.has_rejected:
            raise outcomes.error(self.reports)

    def reject_last(self, reason: str) -> AttemptReport:
        """Record that the graph of the last attempt, which succeeded, cannot be used."""
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
    ) -> AttemptReport:
        """Add an attempt to the list; `error` says why its graph is not the one to write."""
        why = None if error is None else str(error)
        name, exporter, reason = candidate.strategy.name, candidate.exporter, candidate.reason
        self.reports.append(AttemptReport(name, exporter, reason, why, variant, seconds, tried))
        return self.reports[-1]

    def _time_used_up(self, candidate: Candidate) -> ModelExportError | None:
        if not self.is_time_up:
            return None
        return StrategyIncompatibleError(
            candidate.strategy.name,
            f"not tried, because the {self._timeout:g} s for all attempts (timeout, --timeout) were used up.",
            "",
        )


def _plan(candidates: Sequence[Candidate], model: torch.nn.Module, *, last_resorts: bool) -> list[_Attempt]:
    """The attempts to make, in order. Each may be followed by one that its outcome asks for."""
    exporters = [candidate.exporter for candidate in candidates]
    first = [one for i, one in enumerate(candidates) if one.exporter not in exporters[:i]]
    # With the exporter of an earlier candidate: they would probably fail as that one did.
    repeated = [one for one in candidates if one not in first]
    variants = [(one, v) for one in candidates for v in one.strategy.last_variants(model, one.exporter)]
    return [
        *(_Attempt(one) for one in first),
        *(_Attempt(*one, is_last_resort=True) for one in variants if last_resorts),
        *(_Attempt(one) for one in repeated),
    ]


def _after_failure(attempt: _Attempt, error: ModelExportError) -> list[_Attempt]:
    """The variant that the error names."""
    retry = error.retry if isinstance(error, StrategyIncompatibleError) else None
    return [_Attempt(attempt.candidate, retry)] if retry is not None else []


def _after_rejection(attempt: _Attempt, request: CaptureRequest) -> list[_Attempt]:
    """The same without torch's optimizer, which may be what is wrong with the file."""
    if attempt.candidate.exporter == TORCHSCRIPT or not attempt.options(request).get("optimize", True):
        return []
    return [_Attempt(attempt.candidate, dataclasses.replace(attempt.variant, unoptimized=True))]


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _try(attempt: _Attempt, request: CaptureRequest) -> tuple[Capture, Specialization] | ModelExportError:
    """Return the capture and what tracing fixed in it, or the error."""
    candidate = attempt.candidate
    request = dataclasses.replace(
        request, exporter=candidate.exporter, variant=attempt.variant, options=attempt.options(request)
    )
    mode = contextlib.nullcontext() if request.training else evaluation_mode(request.model)
    try:
        with TORCH_LOCK, mode:
            with preserved_state(request.model), recorded_warnings(request.model) as warned:
                capture = candidate.strategy.capture(request)
            if candidate.exporter != TORCHSCRIPT:
                return capture, Specialization(tuple(warned), ())
            with preserved_state(request.model):
                reads = find_data_reads(request.model, request.args, request.kwargs)
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
