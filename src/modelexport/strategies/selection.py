"""Strategy selection: which strategies to try for a model, in which order and why; and the capture with the first."""

from __future__ import annotations

import dataclasses

import torch

from modelexport.capture import (
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
    InputError,
    ModelExportError,
    SpecializationError,
    StrategyIncompatibleError,
)
from modelexport.strategies.attempts import AttemptReport
from modelexport.strategies.base import CaptureRequest, Strategy
from modelexport.strategies.characteristics import ModelCharacteristics, characterize
from modelexport.strategies.registry import AUTO, StrategyRegistry, default_registry

_MAX_PLACES = 3


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A strategy to try with one of its exporters, and the reason."""

    strategy: Strategy
    exporter: str
    reason: str


class StrategySelector:
    """Recommends strategies of a registry for a model."""

    def __init__(self, registry: StrategyRegistry | None = None) -> None:
        self._registry = registry if registry is not None else default_registry()

    def recommend(self, model: torch.nn.Module, *, dynamic_shapes: bool = False) -> list[Candidate]:
        """The candidates for the model, the best first, each with the reason.

        Strategies are registered in the order of the precision of their evidence. Compiled TorchScript has no Python
        code to trace, so for such a model the strategies that use the TorchScript exporter come first.
        """
        traits = characterize(model, dynamic_shapes=dynamic_shapes)
        found = [
            Candidate(strategy, exporter, _reason(rank, position, exporter, traits))
            for rank, strategy in enumerate(self._registry)
            for position, exporter in enumerate(strategy.exporters(model))
        ]
        if traits.is_scripted:
            found.sort(key=lambda candidate: candidate.exporter != TORCHSCRIPT)
        return found

    def candidates(
        self, name: str, exporter: str | None, model: torch.nn.Module, *, dynamic_shapes: bool = False
    ) -> list[Candidate]:
        """The candidates for a strategy name, with that exporter if one is given.

        Raises:
            UnknownStrategyError: No strategy has that name.
            InputError: No candidate uses that exporter.
        """
        if name == AUTO:
            found = self.recommend(model, dynamic_shapes=dynamic_shapes)
        else:
            strategy = self._registry.get(name)
            found = [Candidate(strategy, own, "requested by name") for own in strategy.exporters(model)]
        if exporter is None:
            return found
        usable = [candidate for candidate in found if candidate.exporter == exporter]
        if not usable:
            known = ", ".join(dict.fromkeys(candidate.exporter for candidate in found))
            raise InputError(f"strategy {name!r} has no exporter {exporter!r} for this model: choose one of {known}")
        return usable


def _reason(rank: int, position: int, exporter: str, traits: ModelCharacteristics) -> str:
    if traits.is_scripted and exporter == TORCHSCRIPT:
        return "the model is compiled TorchScript, which has its own exporter"
    if exporter == DYNAMO_WITH_CACHES:
        return "torch's exporter with the cache classes of transformers registered as pytrees"
    if position > 0 and traits.is_huggingface:
        return "the model is a transformers model, and transformers' exporter supports more of those"
    if rank == 0:
        return "it records module calls most precisely"
    return "the fallback if the candidates before it fail"


def capture_with_first(found: list[Candidate], request: CaptureRequest) -> tuple[Capture, tuple[AttemptReport, ...]]:
    """The capture of the first candidate that succeeds, with all attempts.

    A trace that turns values which depend on the inputs into constants is accepted as the first choice, or with
    `allow_specialization`; it is not a fallback for an exporter that would have kept them.

    Raises:
        SpecializationError: Only such a trace succeeded.
        AllStrategiesFailedError: All of several strategies failed.
        StrategyIncompatibleError: The only strategy failed with each of its exporters.
        InputError: The inputs do not fit the model, so no other candidate can succeed.
    """
    attempts: list[AttemptReport] = []
    failures: list[tuple[Candidate, ModelExportError]] = []
    refused: Specialization | None = None
    for candidate in found:
        name, exporter = candidate.strategy.name, candidate.exporter
        traces = exporter == TORCHSCRIPT
        try:
            if traces and refused is not None:
                raise _refusal(name, exporter, refused)
            with recorded_warnings(request.model) as warned:
                capture = candidate.strategy.capture(dataclasses.replace(request, exporter=exporter))
            reads = find_data_reads(request.model, request.args, request.kwargs) if traces else ()
            fixed = Specialization(tuple(warned), reads)
            if traces and not request.allow_specialization and _needs_consent(fixed, failures):
                refused = fixed
                raise _refusal(name, exporter, fixed)
        except InputError:
            raise
        except ModelExportError as error:
            failures.append((candidate, error))
            attempts.append(AttemptReport(name, exporter, candidate.reason, str(error)))
            continue
        attempts.append(AttemptReport(name, capture.exporter, candidate.reason))
        return dataclasses.replace(capture, notes=(*capture.notes, *fixed.notes())), tuple(attempts)
    if refused is not None:
        raise _specialization_error(refused, failures) from failures[0][1]
    raise _combined_error(failures) from failures[-1][1].__cause__


def _needs_consent(fixed: Specialization, failures: list[tuple[Candidate, ModelExportError]]) -> bool:
    """Whether a trace, used as a fallback, may be wrong for other inputs than the example inputs."""
    if any(isinstance(error, DataDependentError) for _, error in failures):
        # The model does depend on values: a trace in which anything became a constant may have fixed them.
        return not fixed.is_empty
    return bool(failures and fixed.by_inputs)


def _refusal(strategy: str, exporter: str, fixed: Specialization) -> StrategyIncompatibleError:
    return StrategyIncompatibleError(
        strategy,
        f"the {exporter} exporter traces the model, and values that depend on the inputs become constants: "
        f"{_shorten([str(place) for place in fixed.all_places])}.",
        "Allow that with allow_specialization, or name the strategy and exporter",
    )


def _specialization_error(
    fixed: Specialization, failures: list[tuple[Candidate, ModelExportError]]
) -> SpecializationError:
    reported = [
        error.place for _, error in failures if isinstance(error, DataDependentError) and error.place is not None
    ]
    places = [str(place) for place in fixed.by_inputs] or reported or [str(place) for place in fixed.all_places]
    places = list(dict.fromkeys(places))
    others = dict.fromkeys(
        f"{candidate.exporter}: "
        + (error.reason if isinstance(error, StrategyIncompatibleError) else str(error)).removesuffix(".")
        for candidate, error in failures
        if candidate.exporter != TORCHSCRIPT and not isinstance(error, DataDependentError)
    )
    because = f" for other reasons ({_shorten(list(others))})" if others else ""
    message = (
        f"this model depends on the values of its inputs at {_shorten(places)}. Tracing would turn them into constants "
        "of the example inputs, and the file would be wrong for inputs with other values; the exporters that do not "
        f"trace failed{because}. Rewrite the model with torch.cond or tensor operations, or accept such a file: "
        "allow_specialization=True (--allow-specialization), or strategy='htp' (--strategy htp)"
    )
    return SpecializationError(
        [(f"{candidate.strategy.name} ({candidate.exporter})", error) for candidate, error in failures], message, places
    )


def _shorten(texts: list[str]) -> str:
    rest = f" and {len(texts) - _MAX_PLACES} more" if len(texts) > _MAX_PLACES else ""
    return "; ".join(texts[:_MAX_PLACES]) + rest


def _combined_error(failures: list[tuple[Candidate, ModelExportError]]) -> ModelExportError:
    if len(failures) == 1:
        return failures[0][1]
    names = {candidate.strategy.name for candidate, _ in failures}
    if len(names) > 1:
        return AllStrategiesFailedError(
            [(f"{candidate.strategy.name} ({candidate.exporter})", error) for candidate, error in failures]
        )
    # One strategy that was requested by name, with each of its exporters.
    own = [error for _, error in failures if isinstance(error, StrategyIncompatibleError)]
    reason = " ".join(dict.fromkeys(error.reason for error in own))
    return StrategyIncompatibleError(names.pop(), reason, own[-1].suggestion if own else "")
