"""A call that failed, as the rules that repair it see it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from modelexport.sources.inputs.synthesis.model_facts import ModelFacts
from modelexport.sources.inputs.synthesis.tensor_spec import Proposal, TensorSpec, tensor_specs
from modelexport.sources.inputs.synthesis.trial_call import Failure

_NUMBER = re.compile(r"(?<![\w.])\d{1,9}(?![\w.]*\w)")
_TIMES = re.compile(r"[x*]")
_MAX_NUMBERS = 8
_ABOUT_SHAPES = (ValueError, RuntimeError, IndexError, AssertionError, TypeError)


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A call that failed.

    Attributes:
        facts: What is known about the model.
        proposal: The arguments of the call.
        failure: How it failed.
        earlier: The attempts before it.
    """

    facts: ModelFacts
    proposal: Proposal
    failure: Failure
    earlier: Sequence[Attempt] = dataclasses.field(default=(), repr=False)

    @property
    def tensors(self) -> dict[str, TensorSpec]:
        """The arguments that are tensors whose shapes may be changed."""
        return tensor_specs(self.proposal)

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
