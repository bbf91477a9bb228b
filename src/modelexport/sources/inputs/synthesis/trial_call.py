"""One real call of a model with synthesized inputs, and what is known when it fails."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from modelexport.display import message_of
from modelexport.sources.inputs.synthesis.failure_hints import (
    NOTHING,
    Operand,
    Origins,
    Spoken,
    lines,
    mentioned,
    spoken_of,
)
from modelexport.sources.inputs.synthesis.model_facts import ModelFacts
from modelexport.sources.inputs.synthesis.tensor_spec import Proposal, TensorSpec
from modelexport.torch_support import CallWatch, isolated_run, named_results

_MOST_WORDS = 200
_NUMBER = re.compile(r"(?<![\w.])\d{1,9}(?![\w.]*\w)")
_TIMES = re.compile(r"[x*]")
_MAX_NUMBERS = 8
_ABOUT_SHAPES = (ValueError, RuntimeError, IndexError, AssertionError, TypeError)

# The shape and type of a tensor.
Given = tuple[tuple[int, ...], torch.dtype]


@dataclasses.dataclass(frozen=True)
class Failure:
    """How a call failed.

    Attributes:
        words: The message of the error, in one line.
        names: Names in its words, then in the lines of code that led to it, the innermost first.
        module: The innermost module that was running.
        given: The tensors that this module was given.
        progress: How far it came: how many calls of modules had ended well, then the lines of code that were running.
        operands: What the operation of torch was given that failed, if it was one.
        spoken: The tensors that the line of code speaks of that failed, and the line.
    """

    kind: type[Exception]
    words: str
    names: tuple[str, ...]
    module: torch.nn.Module | None
    given: tuple[Given, ...]
    progress: tuple[int, ...]
    operands: tuple[Operand, ...] = ()
    spoken: Spoken = NOTHING

    @property
    def suspects(self) -> tuple[str, ...]:
        """The arguments that what failed was made of, the likeliest first; none where nothing is known."""
        known = [operand.origins for operand in self.operands] or [tensor.origins for tensor in self.spoken.tensors]
        return tuple(dict.fromkeys(name for names in sorted(known, key=len) for name in names))

    def __str__(self) -> str:
        said = self.words if len(self.words) <= _MOST_WORDS else f"{self.words[: _MOST_WORDS - 2]} …"
        return f"{self.kind.__name__}: {said}"


def try_call(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], names: Sequence[str] = ()
) -> Failure | None:
    """Call the model; None where it returns tensors. Nothing of the model or of torch is left changed.

    `names` are those of the positional arguments.
    """
    origins = Origins({**dict(zip(names, args, strict=False)), **kwargs})
    ended = itertools.count()

    def enter(call: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Given, ...]:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        return tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)

    def leave(*_: object) -> None:
        next(ended)

    calls: CallWatch[tuple[Given, ...]] = CallWatch(enter, leave)

    def failure(error: Exception) -> Failure:
        call = calls.raised_in(error)
        # Only words and shapes are kept of the error: its traceback would hold every tensor of the call.
        return Failure(
            type(error),
            " ".join(message_of(error).split()),
            tuple(dict.fromkeys(mentioned(error))),
            call.module if call is not None else None,
            (call.record or ()) if call is not None else (),
            (next(ended), *lines(error)),
            origins.operands(error),
            spoken_of(error, origins),
        )

    with isolated_run(model):
        try:
            with calls.watching(dict(model.named_modules())), origins:
                result = model(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  whatever a forward raises at inputs it was not made for
            failed = failure(error)
            # Its frames refer to it by way of `origins`: their tensors would stay until the next garbage collection.
            error.__traceback__ = None
            return failed
        if any(True for _ in named_results(result)):
            return None
        return failure(ValueError(f"it returned a {type(result).__name__} without a tensor"))


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A call that failed, as the rules that repair it see it."""

    facts: ModelFacts
    proposal: Proposal
    failure: Failure
    earlier: Sequence[Attempt] = dataclasses.field(default=(), repr=False)

    @property
    def tensors(self) -> dict[str, TensorSpec]:
        """The arguments that are tensors whose shapes may be changed."""
        return {name: spec for name, spec in self.proposal.items() if isinstance(spec, TensorSpec) and not spec.rows}

    @property
    def numbers(self) -> list[int]:
        """The whole numbers in the message of the error, where it may be about shapes."""
        if not issubclass(self.failure.kind, _ABOUT_SHAPES):
            return []
        found = _NUMBER.findall(_TIMES.sub(" ", self.failure.words))
        return list(dict.fromkeys(int(text) for text in found))[:_MAX_NUMBERS]

    def replace(self, /, **changed: object) -> Proposal:
        """The proposal with some arguments replaced or added."""
        return {**self.proposal, **changed}
