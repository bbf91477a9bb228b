"""What the attempts made so far say about the ones to come, and their errors as one error."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from modelexport.attempt_report import PLAIN, AttemptReport, Variant
from modelexport.capture import (
    DYNAMO,
    DYNAMO_WITH_CACHES,
    TORCHSCRIPT,
    Capture,
    Specialization,
    why_reads_matter,
)
from modelexport.errors import (
    AllStrategiesFailedError,
    DataDependentError,
    ExportError,
    ModelExportError,
    SpecializationError,
    StrategyIncompatibleError,
)
from modelexport.strategies.base import CaptureRequest
from modelexport.strategies.selection import Candidate

_MAX_PLACES = 3
_NEEDS_NO_CONSENT = (
    "what tracing fixed needs no consent: the model computes the same with other values in its place, and the file "
    "equals PyTorch on other inputs"
)


class PlannedAttempt(NamedTuple):
    """An attempt to make: a candidate in one variant. A last resort is made only where it can help."""

    candidate: Candidate
    variant: Variant = PLAIN
    is_last_resort: bool = False

    def options(self, request: CaptureRequest) -> Mapping[str, Any]:
        """The options of the exporter in this attempt."""
        return {**request.options, "optimize": False} if self.variant.unoptimized else request.options


class RejectedGraphError(StrategyIncompatibleError):
    """A graph that was captured and is not used; `fixed` are the constants in it that need consent, if any."""

    def __init__(self, candidate: Candidate, why: str, fixed: Specialization | None) -> None:
        self.why, self.fixed = why, fixed
        constants = _shorten([] if fixed is None else [str(place) for place in fixed.all_places])
        traces = f"the {candidate.exporter} exporter traces the model, and values that depend on the inputs become"
        reason = f"{traces} constants: {constants}; {why}." if constants else why
        suggestion = "Allow that with allow_specialization, or name the strategy and exporter" if constants else ""
        super().__init__(candidate.strategy.name, reason, suggestion)


class ValuesMatterError(RejectedGraphError):
    """A trace with constants that decide what the model computes, at all sizes of the inputs."""


class _Failure(NamedTuple):
    attempt: PlannedAttempt
    report: AttemptReport
    error: ModelExportError


class AttemptOutcomes:
    """How the attempts of one list ended."""

    def __init__(self, request: CaptureRequest) -> None:
        self._request = request
        self._failures: list[_Failure] = []
        self._rejected: list[tuple[PlannedAttempt, RejectedGraphError]] = []

    @property
    def has_file(self) -> bool:
        """Whether an attempt succeeded, and the caller can use its graph although it was rejected."""
        return any(error.fixed is None for _, error in self._rejected)

    def _needs_consent(self) -> RejectedGraphError | None:
        return next((error for _, error in self._rejected if error.fixed is not None), None)

    def fail(self, attempt: PlannedAttempt, report: AttemptReport, error: ModelExportError) -> None:
        """Add an attempt that failed, or was not made."""
        self._failures.append(_Failure(attempt, report, error))
        self._rejected += [(attempt, error)] if isinstance(error, RejectedGraphError) else []

    def reject(self, attempt: PlannedAttempt, report: AttemptReport, unproven: Specialization | None) -> None:
        """Add an attempt that succeeded, and whose graph the caller did not take."""
        error = RejectedGraphError(attempt.candidate, report.error or "it was not used", unproven)
        self.fail(attempt, report, error)

    def judge(self, attempt: PlannedAttempt, capture: Capture, fixed: Specialization) -> Capture | ModelExportError:
        """Return the capture with notes on the values that the trace fixed, or the error if it needs consent."""
        request, notes = self._request, (*capture.notes, *fixed.notes())
        if not capture.fixes_values or request.allow_specialization or self._is_safe(fixed):
            return dataclasses.replace(capture, notes=notes)
        why = why_reads_matter(request.model, request.args, request.kwargs, training=request.training)
        if not why:
            return dataclasses.replace(capture, notes=(*notes, _NEEDS_NO_CONSENT), unproven=fixed)
        return ValuesMatterError(attempt.candidate, why, fixed)

    def obstacle(self, attempt: PlannedAttempt) -> ModelExportError | None:
        """Why an attempt would be in vain; None if it may succeed."""
        candidate, graph = attempt.candidate, _of_graph(attempt.variant)
        # Torch's exporter did not need to know the caches, so knowing them changes nothing.
        same = DYNAMO if candidate.exporter == DYNAMO_WITH_CACHES else candidate.exporter
        for earlier, error in self._rejected:
            if earlier.candidate.exporter in (same, candidate.exporter) and _of_graph(earlier.variant) == graph:
                why = f"not tried: the {candidate.exporter} exporter would write the file again that was rejected"
                return type(error)(candidate, why, error.fixed)
        return None

    def is_hopeless(self, attempt: PlannedAttempt) -> bool:
        """Whether a last resort would fail or be refused, too.

        It fails if this package failed. Where the model depends on the values of its inputs, only knowing these can
        help.
        """
        if any(not isinstance(failure.error, StrategyIncompatibleError) for failure in self._failures):
            return True
        by_values = any(
            isinstance(failure.error, DataDependentError)
            and failure.error.retry is None
            and failure.report.exporter == attempt.candidate.exporter
            for failure in self._failures
        )
        uses_values = attempt.variant.input_values
        return by_values is not uses_values or (uses_values and self._needs_consent() is not None)

    def error(self, reports: Sequence[AttemptReport]) -> ModelExportError:
        """All failures as one error, with the cause of the first."""
        # What a last resort failed with says less about the model.
        failures = [failure for failure in self._failures if not failure.attempt.is_last_resort] or self._failures
        found = _combined_error(failures, self._needs_consent())
        if isinstance(found, ExportError):
            found.attempts = tuple(reports)
        found.__cause__ = self._failures[0].error.__cause__
        return found

    def _is_safe(self, fixed: Specialization) -> bool:
        """Whether a trace needs no consent: as a fallback it may be wrong for other inputs than the example."""
        errors = [failure.error for failure in self._failures if failure.report.exporter != TORCHSCRIPT]
        # Where the model does depend on values, a trace in which anything became a constant may have fixed them.
        by_values = any(isinstance(error, DataDependentError) for error in errors)
        return not errors or (fixed.is_empty if by_values else not fixed.by_inputs)


def is_by_values(error: ExportError) -> bool:
    """Whether all attempts failed because of values, and would fail with fewer dynamic axes as well."""
    return isinstance(error, SpecializationError) and all(
        isinstance(one, ValuesMatterError) or (isinstance(one, DataDependentError) and one.place in error.places)
        for _, one in error.failures
    )


def _of_graph(variant: Variant) -> Variant:
    """The variant without what does not change the graph."""
    return dataclasses.replace(variant, unwatched=False)


def _combined_error(failures: Sequence[_Failure], refused: RejectedGraphError | None) -> ModelExportError:
    named = [(failure.report.name, failure.error) for failure in failures]
    if refused is not None and refused.fixed is not None:
        message, places = _explain_refusal(refused.fixed, refused.why, failures)
        return SpecializationError(named, message, places)
    if len({failure.report.strategy for failure in failures}) > 1:
        return AllStrategiesFailedError(named)
    if len(failures) == 1 or all(isinstance(failure.error, DataDependentError) for failure in failures):
        return failures[0].error
    # One strategy that was requested by name, with each of its exporters and variants.
    reasons = dict.fromkeys(_reason(failure.error) for failure in failures)
    first = failures[0].error
    suggestion = first.suggestion if isinstance(first, StrategyIncompatibleError) else ""
    return StrategyIncompatibleError(failures[0].report.strategy, " ".join(reasons), suggestion)


def _explain_refusal(fixed: Specialization, why: str, failures: Sequence[_Failure]) -> tuple[str, list[str]]:
    """Return the message, and the source lines where values become constants."""
    errors = [failure.error for failure in failures]
    reported = [error.place for error in errors if isinstance(error, DataDependentError) and error.place is not None]
    places = [str(place) for place in fixed.by_inputs] or reported or [str(place) for place in fixed.all_places]
    places = list(dict.fromkeys(places))
    others = dict.fromkeys(
        f"{failure.report.exporter}: {_reason(failure.error).removesuffix('.')}"
        for failure in failures
        if failure.report.exporter != TORCHSCRIPT
        and not isinstance(failure.error, DataDependentError | RejectedGraphError)
    )
    because = f" for other reasons ({_shorten(list(others))})" if others else ""
    message = (
        f"this model depends on the values of its inputs at {_shorten(places)}. Tracing would turn them into constants "
        f"of the example inputs, and the file may be wrong for inputs with other values ({why}); the exporters that do "
        f"not trace failed{because}. Rewrite the model with torch.cond or tensor operations, or accept such a file: "
        "allow_specialization=True (--allow-specialization), or strategy='htp' (--strategy htp)"
    )
    return message, places


def _reason(error: ModelExportError) -> str:
    return error.reason if isinstance(error, StrategyIncompatibleError) else str(error)


def _shorten(texts: list[str]) -> str:
    rest = f" and {len(texts) - _MAX_PLACES} more" if len(texts) > _MAX_PLACES else ""
    return "; ".join(texts[:_MAX_PLACES]) + rest
