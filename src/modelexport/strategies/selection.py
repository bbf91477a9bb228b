"""Which strategies to try for a model, in which order and why; and trying them."""

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

_MOST_PLACES = 3


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A strategy worth trying with one of its exporters, and why."""

    strategy: Strategy
    exporter: str
    reason: str


class StrategySelector:
    """Recommends strategies for models, from what there is."""

    def __init__(self, registry: StrategyRegistry | None = None) -> None:
        self._registry = registry if registry is not None else default_registry()

    def recommend(self, model: torch.nn.Module, *, dynamic_shapes: bool = False) -> list[Candidate]:
        """What to try for the model, the best first, each with the reason.

        Strategies are registered in the order of the precision of their evidence. Compiled TorchScript has no Python
        to trace, so strategies that can use its own exporter come first then.
        """
        model_is = characterize(model, dynamic_shapes=dynamic_shapes)
        found = [
            Candidate(strategy, exporter, _reason(number, place, exporter, model_is))
            for number, strategy in enumerate(self._registry)
            for place, exporter in enumerate(strategy.exporters(model))
        ]
        if model_is.is_scripted:
            found.sort(key=lambda candidate: candidate.exporter != TORCHSCRIPT)
        return found

    def candidates(
        self, name: str, exporter: str | None, model: torch.nn.Module, *, dynamic_shapes: bool = False
    ) -> list[Candidate]:
        """What to try for the strategy of that name, with that exporter if one is given.

        Raises:
            UnknownStrategyError: There is no such strategy.
            InputError: No candidate uses that exporter.
        """
        if name == AUTO:
            found = self.recommend(model, dynamic_shapes=dynamic_shapes)
        else:
            strategy = self._registry.get(name)
            found = [Candidate(strategy, made_by, "asked for by name") for made_by in strategy.exporters(model)]
        if exporter is None:
            return found
        usable = [candidate for candidate in found if candidate.exporter == exporter]
        if not usable:
            known = ", ".join(dict.fromkeys(candidate.exporter for candidate in found))
            raise InputError(f"strategy {name!r} has no exporter {exporter!r} for this model: choose one of {known}")
        return usable


def _reason(number: int, place: int, exporter: str, model_is: ModelCharacteristics) -> str:
    if model_is.is_scripted and exporter == TORCHSCRIPT:
        return "the model is compiled TorchScript, which has its own exporter"
    if exporter == DYNAMO_WITH_CACHES:
        return "what torch exports of the model once it knows the caches of transformers"
    if place > 0 and model_is.is_huggingface:
        return "the model is of transformers' classes, whose exporter takes more of them"
    if number == 0:
        return "the most exact record of the calls"
    return "if those before it fail"


def capture_with_first(found: list[Candidate], request: CaptureRequest) -> tuple[Capture, tuple[AttemptReport, ...]]:
    """The capture of the first candidate that serves, with the record of all attempts.

    A trace that fixes values which depend on the inputs serves where it is the first choice, or by consent: not as a
    fallback for an exporter that would have kept them.

    Raises:
        SpecializationError: Such a trace is all that there is.
        AllStrategiesFailedError: None of several strategies did.
        StrategyIncompatibleError: The only one did not, with any of its exporters.
        InputError: The inputs do not fit the model, so that trying further is of no use.
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
        raise _need_of_consent(refused, failures) from failures[0][1]
    raise _combined(failures) from failures[-1][1].__cause__


def _needs_consent(fixed: Specialization, failures: list[tuple[Candidate, ModelExportError]]) -> bool:
    """Whether a trace that others failed before may be wrong for other inputs than the example."""
    if any(isinstance(error, DataDependentError) for _, error in failures):
        # There is something to be fixed: only a trace that nothing was seen of is known to have kept it.
        return not fixed.is_empty
    return bool(failures and fixed.by_inputs)


def _refusal(strategy: str, exporter: str, fixed: Specialization) -> StrategyIncompatibleError:
    return StrategyIncompatibleError(
        strategy,
        f"the {exporter} exporter traces it, which fixes what depends on the inputs to the example inputs: "
        f"{_list_places(fixed)}.",
        "Allow that with allow_specialization, or name the strategy and exporter",
    )


def _need_of_consent(fixed: Specialization, failures: list[tuple[Candidate, ModelExportError]]) -> SpecializationError:
    told = [error.place for _, error in failures if isinstance(error, DataDependentError) and error.place is not None]
    places = [str(place) for place in fixed.by_inputs] or told or [str(place) for place in fixed.all_places]
    places = list(dict.fromkeys(places))
    others = dict.fromkeys(
        f"{candidate.exporter}: "
        + (error.reason if isinstance(error, StrategyIncompatibleError) else str(error)).removesuffix(".")
        for candidate, error in failures
        if candidate.exporter != TORCHSCRIPT and not isinstance(error, DataDependentError)
    )
    because = f" for other reasons ({_shorten(list(others))})" if others else ""
    message = (
        f"this model depends on the values of its inputs at {_shorten(places)}. Tracing would fix that to what the "
        "example inputs give, and the file would be wrong for inputs that lead elsewhere; the exporters that do not "
        f"trace failed{because}. Rewrite the model with torch.cond or tensor operations, or accept such a file: "
        "allow_specialization=True (--allow-specialization), or strategy='htp' (--strategy htp)"
    )
    return SpecializationError(
        [(f"{candidate.strategy.name} ({candidate.exporter})", error) for candidate, error in failures], message, places
    )


def _list_places(fixed: Specialization) -> str:
    return _shorten([str(place) for place in fixed.all_places])


def _shorten(texts: list[str]) -> str:
    rest = f" and {len(texts) - _MOST_PLACES} more" if len(texts) > _MOST_PLACES else ""
    return "; ".join(texts[:_MOST_PLACES]) + rest


def _combined(failures: list[tuple[Candidate, ModelExportError]]) -> ModelExportError:
    if len(failures) == 1:
        return failures[0][1]
    names = {candidate.strategy.name for candidate, _ in failures}
    if len(names) > 1:
        return AllStrategiesFailedError(
            [(f"{candidate.strategy.name} ({candidate.exporter})", error) for candidate, error in failures]
        )
    # One strategy that was asked for by name, with each of its exporters.
    told = [error for _, error in failures if isinstance(error, StrategyIncompatibleError)]
    reason = " ".join(dict.fromkeys(error.reason for error in told))
    return StrategyIncompatibleError(names.pop(), reason, told[-1].suggestion if told else "")
