"""One real call of a model with synthesized inputs, and what is known when it fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from modelexport.sources.inputs.synthesis.provenance import Operand, Origins
from modelexport.sources.inputs.synthesis.traceback_hints import NOTHING, Spoken, lines, mentioned, spoken_of
from modelexport.torch_support import CallWatch, buffers_restored, evaluation_mode, named_results, preserved_state

_MOST_WORDS = 200

# The shape and type of a tensor.
Given = tuple[tuple[int, ...], torch.dtype]


@dataclasses.dataclass(frozen=True)
class Failure:
    """How a call failed.

    Attributes:
        kind: The class of the error.
        words: What it says, in one line.
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

    Args:
        model: The model.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        names: What the positional arguments are called.
    """
    origins = Origins({**dict(zip(names, args, strict=False)), **kwargs})
    with preserved_state(model), evaluation_mode(model), buffers_restored(model), torch.no_grad():
        running = _Running(origins)
        try:
            with running.calls.watching(dict(model.named_modules())), origins:
                result = model(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  whatever a forward raises at inputs it was not made for
            return running.failure(error)
        if any(True for _ in named_results(result)):
            return None
        return running.failure(ValueError(f"it returned a {type(result).__name__} without a tensor"))


class _Running:
    """The calls that are running, each with the tensors that its module was given."""

    def __init__(self, origins: Origins) -> None:
        self.calls: CallWatch[tuple[Given, ...]] = CallWatch(self._enter, self._leave)
        self._ended = 0
        self._origins = origins

    def _enter(self, call: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Given, ...]:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        return tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)

    def _leave(self, *_: object) -> None:
        self._ended += 1

    def failure(self, error: Exception) -> Failure:
        call = self.calls.raised_in(error)
        module, given = (call.module, call.record or ()) if call is not None else (None, ())
        # Only words and shapes are kept of the error: its traceback would hold every tensor of the call.
        return Failure(
            type(error),
            " ".join(str(error).split()),
            tuple(dict.fromkeys(mentioned(error))),
            module,
            given,
            (self._ended, *lines(error)),
            self._origins.operands(error),
            spoken_of(error, self._origins),
        )
