"""What the attempts made so far say about the ones to come, and their errors as one error."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from modelexport.attempt_report import PLAIN, AttemptReport, Variant
from modelexport.capture import DYNAMO, DYNAMO_WITH_CACHES, TORCHSCRIPT, Capture, Specialization
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


class PlannedAttempt(NamedTuple):
    """An attempt to make: a candidate in one variant. A last resort is made only where it can help."""

    candidate: Candidate
    variant: Variant = PLAIN
    is_last_resort: bool = False

    def options(self, request: CaptureRequest) -> Mapping[str, Any]:
        """The options of the exporter in this attempt."""
        return {**request.options, "optimize": False} if self.variant.unoptimized else request.options


class _UnacceptedTraceError(StrategyIncompatibleError):
    """A trace that turned values of the inputs into constants, without consent."""


class _Failure(NamedTuple):
    report: AttemptReport
    error: ModelExportError
    is_last_resort: bool = False


class AttemptOutcomes:
    """How the attempts of one list ended.

    Args:
        allow_specialization: Whether the user accepts a trace that turns values of the inputs into constants.
    """

    def __init__(self, *, allow_specialization: bool) -> None:
        self._allow_specialization = allow_specialization
        self._failures: list[_Failure] = []
        self._refused: Specialization | None = None
        # The exporters whose graph the caller rejected, with the variant: another strategy would export the same graph.
        self._rejected: set[tuple[str, Variant]] = set()

    @property
    def has_rejected(self) -> bool:
        """Whether an attempt succeeded and the caller did not take its graph."""
        return bool(self._rejected)

    def fail(self, attempt: PlannedAttempt, report: AttemptReport, error: ModelExportError) -> None:
        """Add an attempt that failed, or was not made."""
        self._failures.append(_Failure(report, error, attempt.is_last_resort))

    def reject(self, attempt: PlannedAttempt, report: AttemptReport) -> None:
        """Add an attempt that succeeded, and whose graph the caller did not take."""
        candidate = attempt.candidate
        self._rejected.add((candidate.exporter, _of_graph(attempt.variant)))
        why = StrategyIncompatibleError(candidate.strategy.name, report.error or "it was not used", "")
        self._failures.append(_Failure(report, why))

    def judge(self, attempt: PlannedAttempt, capture: Capture, fixed: Specialization) -> Capture | ModelExportError:
        """Return the capture with notes on the values that the trace fixed, or the error if it needs consent."""
        if not capture.fixes_values or self._allow_specialization or self._is_safe(fixed):
            return dataclasses.replace(capture, notes=(*capture.notes, *fixed.notes()))
        self._refused = fixed
        return _refusal(attempt.candidate, fixed)

    def obstacle(self, attempt: PlannedAttempt) -> ModelExportError | None:
        """Why an attempt would be in vain; None if it may succeed."""
        candidate, variant = attempt.candidate, attempt.variant
        # Torch's exporter did not need to know the caches, so knowing them changes nothing.
        same = DYNAMO if candidate.exporter == DYNAMO_WITH_CACHES else candidate.exporter
        if not self._rejected.isdisjoint((exporter, _of_graph(variant)) for exporter in (same, candidate.exporter)):
            reason = f"not tried: the {candidate.exporter} exporter would write the file again that was rejected."
            return StrategyIncompatibleError(candidate.strategy.name, reason, "")
        if self._refused is not None and candidate.exporter == TORCHSCRIPT:
            return _refusal(candidate, self._refused)
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
        return by_values is not uses_values or (uses_values and self._refused is not None)

    def error(self, reports: Sequence[AttemptReport]) -> ModelExportError:
        """All failures as one error, with the cause of the first."""
        # What a last resort failed with says less about the model.
        failures = [failure for failure in self._failures if not failure.is_last_resort] or self._failures
        found = _combined_error(failures, self._refused)
        if isinstance(found, ExportError):
            found.attempts = tuple(reports)
        found.__cause__ = self._failures[0].error.__cause__
        return found

    def _is_safe(self, fixed: Specialization) -> bool:
        """Whether a trace needs no consent: as a fallback it may be wrong for other inputs than the example."""
        errors = [failure.error for failure in self._failures if failure.report.exporter != TORCHSCRIPT]
        if any(isinstance(error, DataDependentError) for error in errors):
            # The model does depend on values: a trace in which anything became a constant may have fixed them.
            return fixed.is_empty
        return not errors or not fixed.by_inputs


def _of_graph(variant: Variant) -> Variant:
    """The variant without what does not change the graph."""
    return dataclasses.replace(variant, unwatched=False)


def _refusal(candidate: Candidate, fixed: Specialization) -> StrategyIncompatibleError:
    return _UnacceptedTraceError(
        candidate.strategy.name,
        f"the {candidate.exporter} exporter traces the model, and values that depend on the inputs become constants: "
        f"{_shorten([str(place) for place in fixed.all_places])}.",
        "Allow that with allow_specialization, or name the strategy and exporter",
    )


def _combined_error(failures: Sequence[_Failure], refused: Specialization | None) -> ModelExportError:
    named = [(failure.report.name, failure.error) for failure in failures]
    if refused is not None:
        message, places = _explain_refusal(refused, failures)
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


def _explain_refusal(fixed: Specialization, failures: Sequence[_Failure]) -> tuple[str, list[str]]:
    """Return the message, and the source lines where values become constants."""
    errors = [failure.error for failure in failures]
    reported = [error.place for error in errors if isinstance(error, DataDependentError) and error.place is not None]
    places = [str(place) for place in fixed.by_inputs] or reported or [str(place) for place in fixed.all_places]
    places = list(dict.fromkeys(places))
    others = dict.fromkeys(
        f"{failure.report.exporter}: {_reason(failure.error).removesuffix('.')}"
        for failure in failures
        if failure.report.exporter != TORCHSCRIPT
        and not isinstance(failure.error, DataDependentError | _UnacceptedTraceError)
    )
    because = f" for other reasons ({_shorten(list(others))})" if others else ""
    message = (
        f"this model depends on the values of its inputs at {_shorten(places)}. Tracing would turn them into constants "
        "of the example inputs, and the file would be wrong for inputs with other values; the exporters that do not "
        f"trace failed{because}. Rewrite the model with torch.cond or tensor operations, or accept such a file: "
        "allow_specialization=True (--allow-specialization), or strategy='htp' (--strategy htp)"
    )
    return message, places


def _reason(error: ModelExportError) -> str:
    return error.reason if isinstance(error, StrategyIncompatibleError) else str(error)


def _shorten(texts: list[str]) -> str:
    rest = f" and {len(texts) - _MAX_PLACES} more" if len(texts) > _MAX_PLACES else ""
    return "; ".join(texts[:_MAX_PLACES]) + rest
