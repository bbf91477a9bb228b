"""The search for example inputs: propose arguments, call the model with them, repair them by what the failure says."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch

from modelexport.display import counted
from modelexport.errors import InputError
from modelexport.sources.inputs.from_processor import process, samples
from modelexport.sources.inputs.synthesis.initial_guess import guess, guess_for_file
from modelexport.sources.inputs.synthesis.model_facts import ModelFacts
from modelexport.sources.inputs.synthesis.repairs import repairs
from modelexport.sources.inputs.synthesis.tensor_spec import Proposal, TensorSpec, create_arguments
from modelexport.sources.inputs.synthesis.trial_call import Attempt, try_call
from modelexport.storage import ModelFile
from modelexport.torch_support import TORCH_LOCK, check_model, copied_inputs

# The budget is a number of calls and not a time, so that the result does not depend on the machine. A large model gets
# fewer calls, because each takes longer.
_MAX_CALLS = 160
_MIN_CALLS = 24
_MAX_CALLED_PARAMETERS = 20_000_000_000
_MAX_CALLS_WITHOUT_NEW_ANSWER = 40
_MAX_SHOWN = 2
_ADVICE = "give them with --input-shape name=1x16, --inputs file.npz or --input-text (in Python, as example_inputs)"

Inputs = dict[str, Any] | tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class SynthesizedInputs:
    """Inputs that forward accepted, and how they were found.

    Attributes:
        inputs: Keyword arguments, or positional ones for a forward that takes no others.
        rules: The rules on the path from the first proposal to these inputs: where the first proposal came from, then
            the repairs in order.
        guesses: The rule that guessed each argument, for those that were guessed.
        calls: The number of calls that were tried, the accepted one included.
    """

    inputs: Inputs
    rules: tuple[str, ...]
    guesses: Mapping[str, str]
    calls: int


def make_example_inputs(model: torch.nn.Module, processor: object | None = None) -> Inputs:
    """Synthesize example inputs that the model's forward accepts, by calling it.

    The first proposals come from the model itself: its `dummy_inputs` and `main_input_name` where it has them, the
    signature of its forward, its configuration and the shapes of its parameters. When forward rejects a proposal, its
    error decides what is tried next. The model runs in evaluation mode without gradients. The model and torch's state
    are restored afterwards. The same model always gets the same inputs.

    Args:
        model: Any module.
        processor: The tokenizer, image processor, feature extractor or processor that belongs to the model; its output
            for a sample is tried first.

    Returns:
        Keyword arguments, or positional ones for a forward that takes no others.

    Raises:
        InputError: Forward accepted nothing that was tried; the message says what it answered.
    """
    return synthesize_inputs(model, processor).inputs


def synthesize_inputs(
    model: torch.nn.Module,
    processor: object | None = None,
    without: Collection[str] = (),
    most_calls: int = _MAX_CALLS,
    file: ModelFile | None = None,
) -> SynthesizedInputs:
    """Synthesize inputs as `make_example_inputs` does, and say which rules found them.

    Repairs whose names are in `without` are not used, to measure whether a model needs them. The inputs that an ONNX
    `file` of the model takes are tried first.
    """
    check_model(model)
    if type(model).forward is torch.nn.Module.forward and "forward" not in vars(model):
        raise InputError(f"{type(model).__name__} has no forward, so it cannot be called: choose one of its modules")
    facts = ModelFacts.read(model)
    with TORCH_LOCK:
        budget = min(most_calls, max_calls(model))
        found, attempts = _search(model, facts, _first_proposals(model, facts, processor, file), budget, without)
    if found is None:
        raise InputError(_report(model, attempts))
    return found


def complete_inputs(model: torch.nn.Module, given: Mapping[str, Any]) -> Inputs:
    """Add synthesized arguments to the given ones where forward does not run without them.

    Where none are found, the given arguments are returned unchanged: the export will report what is wrong with them.
    """
    with TORCH_LOCK:
        found, _ = _search(model, ModelFacts.read(model), [("given", dict(given))], _MIN_CALLS, ())
    return dict(given) if found is None else found.inputs


def max_calls(model: torch.nn.Module) -> int:
    """The number of calls that are tried at most: fewer for a model with many parameters."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return max(_MIN_CALLS, min(_MAX_CALLS, _MAX_CALLED_PARAMETERS // max(parameters, 1)))


def _search(
    model: torch.nn.Module,
    facts: ModelFacts,
    first: Iterable[tuple[str, Proposal]],
    budget: int,
    without: Collection[str],
) -> tuple[SynthesizedInputs | None, list[Attempt]]:
    """Try proposals until forward accepts one; the failed attempts are returned with it."""
    special_tokens = frozenset(facts.special_tokens().values())
    queue = _Queue()
    for place, (source, proposal) in enumerate(first):
        queue.add(_Candidate(4 * place, proposal, (source,)), ())
    attempts: list[Attempt] = []
    first_seen: dict[str, int] = {}
    while len(attempts) < budget and (candidate := queue.pop()) is not None:
        # The same answers again and again: nothing that is tried makes a difference.
        if len(attempts) - max(first_seen.values(), default=0) > _MAX_CALLS_WITHOUT_NEW_ANSWER:
            break
        arguments = create_arguments(candidate.proposal, facts.dtype, special_tokens)
        args = tuple(arguments[name] for name in facts.positional if name in arguments)
        kwargs = {name: value for name, value in arguments.items() if name not in facts.positional}
        failure = try_call(model, *copied_inputs(args, kwargs), facts.positional)
        if failure is None:
            inputs = kwargs if not args else (*args, kwargs) if kwargs else args
            specs = {name: spec for name, spec in candidate.proposal.items() if isinstance(spec, TensorSpec)}
            guesses = {name: spec.rule for name, spec in specs.items()}
            return SynthesizedInputs(inputs, candidate.rules, guesses, len(attempts) + 1), attempts
        attempt = Attempt(facts, candidate.proposal, failure, tuple(attempts))
        for number, (rule, distance, changed) in enumerate(repairs(attempt, without)):
            cost = candidate.cost + 2 * distance + number // 8
            queue.add(_Candidate(cost, changed, (*candidate.rules, rule)), failure.progress)
        attempts.append(attempt)
        first_seen.setdefault(str(failure), len(attempts))
    return None, attempts


@dataclasses.dataclass(frozen=True)
class _Candidate:
    """A proposal to try, its distance from the first proposals, and the rules that led to it."""

    cost: int
    proposal: Proposal
    rules: tuple[str, ...]


class _Queue:
    """Candidates to try: two that repair the call that came farthest, then the one with the lowest cost, in turn."""

    def __init__(self) -> None:
        self._by_cost: list[tuple[int, int, _Candidate]] = []
        self._by_progress: list[tuple[tuple[int, ...], int, int, _Candidate]] = []
        self._order = itertools.count()
        self._seen: set[str] = set()
        self._turn = itertools.cycle([True, True, False])

    def add(self, candidate: _Candidate, progress: tuple[int, ...]) -> None:
        place = next(self._order)
        heapq.heappush(self._by_cost, (candidate.cost, place, candidate))
        heapq.heappush(self._by_progress, (tuple(-number for number in progress), candidate.cost, place, candidate))

    def pop(self) -> _Candidate | None:
        """The next candidate whose proposal was not tried yet."""
        far = next(self._turn)
        while self._by_cost and self._by_progress:
            candidate = heapq.heappop(self._by_progress)[-1] if far else heapq.heappop(self._by_cost)[-1]
            proposal = candidate.proposal
            # Of other values only the same object is the same.
            keys = {
                name: repr(value) if isinstance(value, TensorSpec | int) else f"{type(value).__name__} {id(value)}"
                for name, value in proposal.items()
            }
            key = repr(sorted(keys.items()))
            bounded = all(spec.is_bounded for spec in proposal.values() if isinstance(spec, TensorSpec))
            if bounded and key not in self._seen:
                self._seen.add(key)
                return candidate
        return None


def _first_proposals(
    model: torch.nn.Module, facts: ModelFacts, processor: object | None, file: ModelFile | None
) -> Iterator[tuple[str, Proposal]]:
    """Where the search starts, the likeliest first, each with the name of its rule."""
    required = [name for name, parameter in facts.parameters.items() if parameter.default is parameter.empty]
    if file is not None:
        taken = guess_for_file(facts, file)
        others = set(required) - {name.partition(".")[0] for name in taken}
        yield "file", {**{name: guess(facts, name) for name in required if name in others}, **taken}
    if processor is not None:
        yield from (("processor", proposal) for proposal in _processed_samples(processor, facts))
    dummies = _dummy_inputs(model, facts)
    if dummies:
        yield "dummy_inputs", dummies
    names = list(dict.fromkeys([*facts.main_inputs, *required]))
    if not names:
        names = [name for name, parameter in facts.parameters.items() if parameter.default is None][:1]
    yield "signature", {name: guess(facts, name) for name in names}


def _processed_samples(processor: object, facts: ModelFacts) -> Iterator[Proposal]:
    """The processor's output for samples, where forward's main input is part of it."""
    for material in samples(processor):
        try:
            processed = process(processor, material, facts.parameters, facts.dtype)
        except InputError:
            continue
        if not facts.main_inputs or set(facts.main_inputs) & set(processed):
            yield processed


def _dummy_inputs(model: torch.nn.Module, facts: ModelFacts) -> Proposal:
    """The model's own example, if its main input is part of it."""
    try:
        dummies = getattr(model, "dummy_inputs", None)
    except Exception:  # noqa: BLE001  a property of the user's that fails is as good as none
        return {}
    if not isinstance(dummies, Mapping) or not set(facts.main_inputs) <= set(dummies):
        return {}
    return {name: value for name, value in dummies.items() if name in facts.parameters}


def _report(model: torch.nn.Module, attempts: list[Attempt]) -> str:
    answers: dict[str, Proposal] = {}
    for attempt in attempts:
        answers.setdefault(str(attempt.failure), attempt.proposal)
    shown = [f"{describe(proposal) or 'nothing'}: {words}" for words, proposal in answers.items()][:_MAX_SHOWN]
    return (
        f"no example inputs could be synthesized for {type(model).__name__}: {_ADVICE}. "
        f"{counted(len(attempts), 'call')} tried; forward answered to {'; to '.join(shown)}"
    )


def describe(inputs: Mapping[str, Any] | tuple[Any, ...]) -> str:
    """Inputs in a few words: names, shapes and types."""
    if isinstance(inputs, tuple):
        return ", ".join(_describe_value(value) for value in inputs)
    return ", ".join(f"{name} {_describe_value(value)}" for name, value in inputs.items())


def _describe_value(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{'x'.join(map(str, value.shape)) or 'scalar'} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
        return f"{len(value)} times {_describe_value(value[0])}"
    return str(value) if isinstance(value, TensorSpec) else repr(value)
