"""Attempts: try candidates in order, each in its variants, until one is accepted or the time is used up."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from modelexport.attempt_report import PLAIN, AttemptReport, Variant
from modelexport.capture import (
    DYNAMO,
    DYNAMO_WITH_CACHES,
    TORCHSCRIPT,
    Capture,
    Specialization,
    find_data_reads,
    recorded_warnings,
)
from modelexport.errors import (
    AllStrategiesFailedError,
    DataDependentError,
    ExportError,
    InputError,
    ModelExportError,
    SpecializationError,
    StrategyIncompatibleError,
)
from modelexport.strategies.base import CaptureRequest
from modelexport.strategies.selection import Candidate
from modelexport.torch_support import TORCH_LOCK, evaluation_mode, preserved_state

DEFAULT_TIMEOUT = 1800.0
_MAX_PLACES = 3


class _Failure(NamedTuple):
    report: AttemptReport
    error: ModelExportError
    is_last: bool = False


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
        self, candidates: Iterable[Candidate], request: CaptureRequest, axes: str = "", *, last_resorts: bool = True
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
        failures: list[_Failure] = []
        refused: Specialization | None = None
        # The exporters whose graph the caller rejected, with the variant: another strategy would export the same graph.
        rejected: set[tuple[str, Variant]] = set()
        pending, last = _in_order(list(candidates), request, last_resorts=last_resorts)
        while pending:
            candidate, variant = pending.pop()
            is_last = (candidate, variant) in last
            if is_last and _is_hopeless(candidate, variant, failures, refused):
                continue
            described = _joined(str(variant), axes)
            obstacle = self._obstacle(candidate, variant, refused, rejected)
            if obstacle is not None:
                failures.append(_Failure(self.record(candidate, described, obstacle, tried=False), obstacle, is_last))
                continue
            started = time.perf_counter()
            options = {**request.options, "optimize": False} if variant.unoptimized else request.options
            outcome = _try(
                candidate, dataclasses.replace(request, exporter=candidate.exporter, variant=variant, options=options)
            )
            seconds = time.perf_counter() - started
            if isinstance(outcome, ModelExportError):
                error = outcome
            else:
                capture, fixed = outcome
                if not _specializes(candidate, variant) or request.allow_specialization or _is_safe(fixed, failures):
                    used = dataclasses.replace(candidate, exporter=capture.exporter)
                    self.record(used, _joined(described, capture.variant), None, seconds)
                    yield dataclasses.replace(capture, notes=(*capture.notes, *fixed.notes()))
                    rejected.add((candidate.exporter, _of_graph(variant)))
                    if candidate.exporter != TORCHSCRIPT and options.get("optimize", True):
                        pending.append((candidate, dataclasses.replace(variant, unoptimized=True)))
                    report = self.reports[-1]
                    why = StrategyIncompatibleError(candidate.strategy.name, report.error or "it was not used", "")
                    failures.append(_Failure(report, why))
                    continue
                refused, error = fixed, _refusal(candidate, fixed)
            failures.append(_Failure(self.record(candidate, described, error, seconds), error, is_last))
            if isinstance(error, StrategyIncompatibleError) and error.retry is not None:
                pending.append((candidate, error.retry))
        if rejected:
            return
        # What a last resort failed with says less about the model.
        found = _combined_error([one for one in failures if not one.is_last] or failures, refused)
        if isinstance(found, ExportError):
            found.attempts = tuple(self.reports)
        raise found from failures[0].error.__cause__

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

    def _obstacle(
        self,
        candidate: Candidate,
        variant: Variant,
        refused: Specialization | None,
        rejected: AbstractSet[tuple[str, Variant]],
    ) -> ModelExportError | None:
        """Why a candidate is not tried at all; None if it is."""
        # Torch's exporter did not need to know the caches, so knowing them changes nothing.
        same = DYNAMO if candidate.exporter == DYNAMO_WITH_CACHES else candidate.exporter
        if not rejected.isdisjoint((exporter, _of_graph(variant)) for exporter in (same, candidate.exporter)):
            reason = f"not tried: the {candidate.exporter} exporter would write the file again that was rejected."
            return StrategyIncompatibleError(candidate.strategy.name, reason, "")
        if refused is not None and candidate.exporter == TORCHSCRIPT:
            return _refusal(candidate, refused)
        return self._time_used_up(candidate) if self.is_time_up else None

    def _time_used_up(self, candidate: Candidate) -> ModelExportError:
        return StrategyIncompatibleError(
            candidate.strategy.name,
            f"not tried, because the {self._timeout:g} s for all attempts (timeout, --timeout) were used up.",
            "",
        )


def _in_order(
    candidates: Sequence[Candidate], request: CaptureRequest, *, last_resorts: bool
) -> tuple[list[tuple[Candidate, Variant]], list[tuple[Candidate, Variant]]]:
    """Return the attempts to make, the first one at the end, and those of them that are a last resort.

    A candidate with the exporter of an earlier one comes after them: it would probably fail as that one did. A strategy
    that was requested by name uses the values of the inputs only with consent; `auto` asks for consent where they help.
    """
    first = [one for i, one in enumerate(candidates) if one.exporter not in {c.exporter for c in candidates[:i]}]
    own = candidates if last_resorts else ()
    last = [(one, v) for one in own for v in one.strategy.last_variants(request.model, one.exporter)]
    if not request.allow_specialization and len({one.strategy.name for one in candidates}) == 1:
        last = [(one, variant) for one, variant in last if not variant.input_values]
    repeated = [candidate for candidate in candidates if candidate not in first]
    return [*((one, PLAIN) for one in first), *last, *((one, PLAIN) for one in repeated)][::-1], last


def _specializes(candidate: Candidate, variant: Variant) -> bool:
    """Whether an attempt may turn values that depend on the inputs into constants."""
    return candidate.exporter == TORCHSCRIPT or variant.input_values


def _is_hopeless(
    candidate: Candidate, variant: Variant, failures: Sequence[_Failure], refused: Specialization | None
) -> bool:
    """Whether a last resort would fail or be refused, too.

    It fails if this package failed. Where the model depends on the values of its inputs, only knowing these can help.
    """
    by_values = any(
        isinstance(failure.error, DataDependentError)
        and failure.error.retry is None
        and failure.report.exporter == candidate.exporter
        for failure in failures
    )
    if any(not isinstance(failure.error, StrategyIncompatibleError) for failure in failures):
        return True
    return by_values is not variant.input_values or (variant.input_values and refused is not None)


def _of_graph(variant: Variant) -> Variant:
    """The variant without what does not change the graph."""
    return dataclasses.replace(variant, unwatched=False)


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _try(candidate: Candidate, request: CaptureRequest) -> tuple[Capture, Specialization] | ModelExportError:
    """Return the capture and what tracing fixed in it, or the error."""
    mode = contextlib.nullcontext() if request.training else evaluation_mode(request.model)
    try:
        with TORCH_LOCK, mode:
            with preserved_state(request.model), recorded_warnings(request.model) as warned:
                capture = candidate.strategy.capture(request)
            if not _specializes(candidate, request.variant):
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


def _is_safe(fixed: Specialization, failures: Sequence[_Failure]) -> bool:
    """Whether a trace needs no consent of the user: as a fallback it may be wrong for other inputs than the example."""
    errors = [failure.error for failure in failures if failure.report.exporter != TORCHSCRIPT]
    if any(isinstance(error, DataDependentError) for error in errors):
        # The model does depend on values: a trace in which anything became a constant may have fixed them.
        return fixed.is_empty
    return not errors or not fixed.by_inputs


def _refusal(candidate: Candidate, fixed: Specialization) -> StrategyIncompatibleError:
    return StrategyIncompatibleError(
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
        if failure.report.exporter != TORCHSCRIPT and not isinstance(failure.error, DataDependentError)
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
