"""Example inputs for a model that came without any: proposals, each tried by a real call, mended by what it answers."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from modelexport.errors import InputError
from modelexport.inputs import copied_inputs
from modelexport.preserve import TURN
from modelexport.sources.inputs.synthesis.initial_guess import propose
from modelexport.sources.inputs.synthesis.model_facts import ModelFacts
from modelexport.sources.inputs.synthesis.repairs import repairs
from modelexport.sources.inputs.synthesis.tensor_spec import Proposal, TensorSpec, make_tensors
from modelexport.sources.inputs.synthesis.trial_call import Failure, try_call
from modelexport.sources.processed_inputs import process, samples

_MOST_ATTEMPTS = 160
_MOST_COMPLETIONS = 24
_MOST_WITHOUT_NEWS = 40
_MOST_SECONDS = 60.0
_MOST_SHOWN = 2
_ADVICE = "give them with --input-shape name=1x16, --inputs file.npz or --input-text (in Python, as example_inputs)"

Inputs = dict[str, Any] | tuple[Any, ...]


def make_example_inputs(model: torch.nn.Module, processor: object | None = None) -> Inputs:
    """Example inputs that the model's forward accepts, found by calling it.

    What is tried comes from the model itself: its `dummy_inputs` and `main_input_name` where it has them, the
    signature of its forward, its configuration and the shapes of its parameters. When forward rejects them, what it
    answers decides what is tried next. The model runs in evaluation mode without gradients, and it and torch are left
    as they were. The same model gets the same inputs each time.

    Args:
        model: Any module.
        processor: The tokenizer, image processor, feature extractor or processor that belongs to the model; what it
            makes of a sample is tried first.

    Returns:
        Keyword arguments, or positional ones for a forward that takes no others.

    Raises:
        InputError: Nothing that was tried is accepted; it says what forward answered.
    """
    if type(model).forward is torch.nn.Module.forward and "forward" not in vars(model):
        raise InputError(f"{type(model).__name__} has no forward, so it cannot be called: choose one of its modules")
    facts = ModelFacts.read(model)
    with TURN:
        found, failures = _search(model, facts, _first(model, facts, processor), _MOST_ATTEMPTS)
    if found is None:
        raise InputError(_report(model, failures))
    return found


def complete_inputs(model: torch.nn.Module, given: Mapping[str, Any]) -> Inputs:
    """What is given, with made-up arguments beside it where forward does not run without them.

    Where none are found, what is given as it is: it is for whoever runs it to say what is wrong with it.
    """
    with TURN:
        found, _ = _search(model, ModelFacts.read(model), [dict(given)], _MOST_COMPLETIONS)
    return dict(given) if found is None else found


_Failures = list[tuple[Proposal, Failure]]


def _search(
    model: torch.nn.Module, facts: ModelFacts, first: Iterable[Proposal], most: int
) -> tuple[Inputs | None, _Failures]:
    """The first inputs that are accepted, the cheapest to come by first; and what failed before."""
    avoided = frozenset(facts.special_tokens().values())
    waiting = _Waiting()
    for rank, proposal in enumerate(first):
        waiting.add(proposal, 4 * rank, ())
    failures: _Failures = []
    end = time.process_time() + _MOST_SECONDS
    answers: dict[str, int] = {}
    while len(failures) < most and time.process_time() < end and (taken := waiting.take()) is not None:
        # The same answers again and again: nothing that is tried makes a difference.
        if len(failures) - max(answers.values(), default=0) > _MOST_WITHOUT_NEWS:
            break
        cost, proposal = taken
        arguments = make_tensors(proposal, facts.dtype, avoided)
        args = tuple(arguments[name] for name in facts.positional if name in arguments)
        kwargs = {name: value for name, value in arguments.items() if name not in facts.positional}
        failure = try_call(model, *copied_inputs(args, kwargs), facts.positional)
        if failure is None:
            return (kwargs if not args else (*args, kwargs) if kwargs else args), failures
        for number, (step, changed) in enumerate(repairs(facts, proposal, failure, failures)):
            waiting.add(changed, cost + 2 * step + number // 8, failure.progress)
        failures.append((proposal, failure))
        answers.setdefault(str(failure), len(failures))
    return None, failures


class _Waiting:
    """Proposals to try: by turns the nearest to the beginning, and one that mends the call that came farthest."""

    def __init__(self) -> None:
        self._near: list[tuple[int, int, Proposal]] = []
        self._far: list[tuple[tuple[int, ...], int, int, Proposal]] = []
        self._order = itertools.count()
        self._seen: set[str] = set()
        self._turn = itertools.cycle([True, True, False])

    def add(self, proposal: Proposal, cost: int, progress: tuple[int, ...]) -> None:
        place = next(self._order)
        heapq.heappush(self._near, (cost, place, proposal))
        heapq.heappush(self._far, (tuple(-number for number in progress), cost, place, proposal))

    def take(self) -> tuple[int, Proposal] | None:
        """What to try next, each once, with its distance from the beginning."""
        far = next(self._turn)
        while self._near and self._far:
            if far:
                _, cost, _, proposal = heapq.heappop(self._far)
            else:
                cost, _, proposal = heapq.heappop(self._near)
            key = repr(sorted((name, _key(value)) for name, value in proposal.items()))
            bounded = all(spec.is_bounded for spec in proposal.values() if isinstance(spec, TensorSpec))
            if bounded and key not in self._seen:
                self._seen.add(key)
                return cost, proposal
        return None


def _key(value: object) -> str:
    return repr(value) if isinstance(value, TensorSpec | int) else f"{type(value).__name__} {id(value)}"


def _first(model: torch.nn.Module, facts: ModelFacts, processor: object | None) -> Iterator[Proposal]:
    """Where the search begins, the likeliest first."""
    if processor is not None:
        yield from _processed(processor, facts)
    dummies = _dummies(model, facts)
    if dummies:
        yield dummies
    required = [name for name, parameter in facts.parameters.items() if parameter.default is parameter.empty]
    names = list(dict.fromkeys([*facts.main_inputs, *required]))
    if not names:
        names = [name for name, parameter in facts.parameters.items() if parameter.default is None][:1]
    yield {name: propose(facts, name)[0] for name in names}


def _processed(processor: object, facts: ModelFacts) -> Iterator[Proposal]:
    """What the processor makes of samples, where forward's main input is among it."""
    for material in samples(processor):
        try:
            made = process(processor, material, facts.parameters, facts.dtype)
        except InputError:
            continue
        if not facts.main_inputs or set(facts.main_inputs) & set(made):
            yield made


def _dummies(model: torch.nn.Module, facts: ModelFacts) -> Proposal:
    """What the model gives as an example of its own, if its main input is there."""
    try:
        dummies = getattr(model, "dummy_inputs", None)
    except Exception:  # noqa: BLE001  a property of the user's that fails is as good as none
        return {}
    if not isinstance(dummies, Mapping) or not set(facts.main_inputs) <= set(dummies):
        return {}
    return {name: value for name, value in dummies.items() if name in facts.parameters}


def _report(model: torch.nn.Module, failures: list[tuple[Proposal, Failure]]) -> str:
    answers: dict[str, Proposal] = {}
    for proposal, failure in failures:
        answers.setdefault(str(failure), proposal)
    shown = [f"{describe(proposal) or 'nothing'}: {words}" for words, proposal in answers.items()][:_MOST_SHOWN]
    return (
        f"no example inputs could be made up for {type(model).__name__}: {_ADVICE}. "
        f"{len(failures)} calls were tried; forward answered to {'; to '.join(shown)}"
    )


def describe(inputs: Mapping[str, Any] | tuple[Any, ...]) -> str:
    """Inputs in a few words: names, shapes and types."""
    if isinstance(inputs, tuple):
        return ", ".join(_described(value) for value in inputs)
    return ", ".join(f"{name} {_described(value)}" for name, value in inputs.items())


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{'x'.join(map(str, value.shape)) or 'scalar'} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
        return f"{len(value)} times {_described(value[0])}"
    return str(value) if isinstance(value, TensorSpec) else repr(value)


# Within the package, where what the inputs are for is plain.
make_inputs = make_example_inputs
