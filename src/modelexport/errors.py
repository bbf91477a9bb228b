"""Every exception this package raises on purpose.

    ModelExportError
    ├── InputError                    an argument, option or path that cannot be used as given
    │   ├── ModelSourceError          a MODEL reference that does not lead to a model
    │   ├── SelectorError             a selector that cannot be read, or that picks nothing
    │   └── UnknownStrategyError      a strategy name that is not registered
    ├── ExportError                   the model could not be turned into an ONNX graph
    │   ├── StrategyIncompatibleError one strategy cannot export this model; has the reason and what to try
    │   │   └── DataDependentError    because its code depends on values that are known only at run time
    │   ├── UnusableOptionError       one exporter does not support an option or input; another may
    │   └── AllStrategiesFailedError  every candidate was tried; names each attempt
    │       └── SpecializationError   only tracing works, with values fixed to those of the example: needs consent
    ├── ExtractionError               a module that cannot be extracted from a graph; has the reason and an alternative
    ├── OnnxRunError                  onnxruntime could not run a graph; quotes its message
    │   └── RunLimitError             because it took more time or memory than its limits allow
    ├── FileFormatError               a model file or sidecar that is invalid, or exceeds a limit
    ├── UnsupportedLibraryError       an installed library lacks or changed a part that is needed; names it
    ├── StorageError                  the result could not be written; existing files are unchanged
    └── ContractError                 a step violated its own contract: a bug, please report it

Each message names the input, the problem and the next step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from modelexport.attempt_report import AttemptReport, Variant
from modelexport.display import counted


class ModelExportError(Exception):
    """Base of every error this package raises on purpose."""


class InputError(ModelExportError):
    """An argument, option or path cannot be used as given."""


class ModelSourceError(InputError):
    """A model reference does not lead to a model."""


class SelectorError(InputError):
    """A selector cannot be read, or picks nothing."""


class UnknownStrategyError(InputError):
    """A strategy name is not registered."""


class ExportError(ModelExportError):
    """The model could not be turned into an ONNX graph.

    Attributes:
        attempts: What was tried, in order, where the error ends an export.
    """

    attempts: tuple[AttemptReport, ...] = ()


class StrategyIncompatibleError(ExportError):
    """One strategy cannot export this model.

    Attributes:
        strategy: The strategy that failed.
        reason: Why.
        suggestion: What to try instead.
        retry: The variant of the same attempt that may succeed, if there is one.
    """

    retry: Variant | None = None

    def __init__(self, strategy: str, reason: str, suggestion: str) -> None:
        self.strategy = strategy
        self.reason = reason
        self.suggestion = suggestion
        super().__init__(f"strategy {strategy!r} cannot export this model: {reason} {suggestion}".strip())


class DataDependentError(StrategyIncompatibleError):
    """One strategy cannot export this model, because its code depends on values that are known only at run time.

    Attributes:
        place: The source line, if known.
    """

    def __init__(self, strategy: str, reason: str, suggestion: str, place: str | None = None) -> None:
        self.place = place
        super().__init__(strategy, reason, suggestion)


class UnusableOptionError(ExportError):
    """One exporter does not support an option or input; another may.

    Attributes:
        reason: Which, and why.
        suggestion: What to do.
    """

    def __init__(self, reason: str, suggestion: str) -> None:
        self.reason = reason
        self.suggestion = suggestion
        super().__init__(f"{reason} {suggestion}")


class AllStrategiesFailedError(ExportError):
    """Every candidate strategy was tried and failed.

    Attributes:
        failures: ``(strategy, error)`` for each attempt, in order; also for those for which no time was left.
    """

    def __init__(self, failures: Sequence[tuple[str, ModelExportError]], message: str | None = None) -> None:
        self.failures = tuple(failures)
        by_reason: dict[str, list[str]] = {}
        for name, error in self.failures:
            reason = error.reason if isinstance(error, StrategyIncompatibleError) else str(error)
            by_reason.setdefault(reason.removesuffix("."), []).append(name)
        tried = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
        count = counted(len(self.failures), "attempt")
        super().__init__(message or f"no strategy could export this model ({count}): {tried}")


class SpecializationError(AllStrategiesFailedError):
    """Only tracing can export the model, and it would fix values that depend on the inputs to those of the example.

    Attributes:
        places: The source lines where that would happen.
    """

    def __init__(self, failures: Sequence[tuple[str, ModelExportError]], message: str, places: Sequence[str]) -> None:
        self.places = tuple(places)
        super().__init__(failures, message)


class ExtractionError(ModelExportError):
    """A module cannot be extracted from a graph.

    Attributes:
        target: The requested module.
        reason: The kind of failure: ``unknown`` (the module does not exist), ``several`` (more than one call matches),
            ``never_called``, ``no_operation`` (the graph has no node of the call), ``fused`` (its inputs or outputs
            were fused away), ``unknown_boundary`` (the inputs and outputs of the call are not recorded) or
            ``invalid_graph`` (the graph is not valid ONNX).
        fused_with: The calls that it is fused with.
        enclosing: The smallest enclosing call that can be extracted, if there is one.
    """

    def __init__(
        self,
        target: str,
        reason: str,
        explanation: str,
        fused_with: Sequence[str] = (),
        enclosing: str | None = None,
    ) -> None:
        self.target = target
        self.reason = reason
        self.explanation = explanation
        self.fused_with = tuple(fused_with)
        self.enclosing = enclosing
        super().__init__(f"cannot extract {target!r}: {explanation}")


class OnnxRunError(ModelExportError):
    """onnxruntime rejected a graph, failed in it, crashed, timed out or ran out of memory."""


class RunLimitError(OnnxRunError):
    """Running a graph took more time or memory than its limits allow."""


class FileFormatError(ModelExportError):
    """A model file or sidecar is invalid, or exceeds a limit."""


class UnsupportedLibraryError(ModelExportError):
    """An installed library lacks a private part that this package needs, or has another one of that name.

    Attributes:
        part: The dotted path of the part.
        version: The installed release.
        seen_on: The releases that have it.
        change: How it behaves differently; empty where it is missing.
    """

    def __init__(self, part: str, version: str, seen_on: Sequence[str], change: str = "") -> None:
        self.part, self.version, self.seen_on, self.change = part, version, tuple(seen_on), change
        library = part.partition(".")[0]
        problem = f"has another {part} than this package knows ({change})" if change else f"has no {part}"
        super().__init__(
            f"{library} {version} {problem}, which this package needs here; install a release of {library} that it "
            f"is known to work with: {', '.join(self.seen_on) or 'see the documentation'}"
        )


class StorageError(ModelExportError):
    """The result could not be written; existing files are unchanged."""


class ContractError(ModelExportError):
    """A step of the pipeline broke its own contract. This is a bug in modelexport."""


def find_own_error(error: BaseException) -> ModelExportError | None:
    """Return the error of this package that `error` is, or that it was raised from, or None.

    torch wraps every exception that is raised while it traces. Only causes are followed: the context of an exception
    can be an unrelated error that the caller is handling.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        if isinstance(current, ModelExportError):
            return current
        seen.add(id(current))
        current = current.__cause__
    return None


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, and those that it was raised from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
