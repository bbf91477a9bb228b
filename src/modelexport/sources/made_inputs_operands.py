"""Other sizes for the arguments that the operands of a failed operation are made of."""

from __future__ import annotations

from collections.abc import Iterator

from modelexport.sources.made_inputs_origins import Operand
from modelexport.sources.made_inputs_specs import Proposal, TensorSpec, tensors
from modelexport.sources.made_inputs_trial import Failure

_MOST_ORIGINS = 2
_LARGEST = 1 << 12
# Sizes that differ by more than this did not come from another by a few that were added.
_FEW = 8


def by_operands(proposal: Proposal, failure: Failure, numbers: list[int]) -> Iterator[Proposal]:
    """With a size changed that an operand has from an argument, to one that another operand has."""
    named = dict(tensors(proposal))
    for place, operand in sorted(enumerate(failure.operands), key=lambda item: len(item[1].origins)):
        for found, wanted in _disagreements(place, failure.operands, numbers):
            for name in operand.origins[:_MOST_ORIGINS]:
                if name in named:
                    for spec in rescaled(named[name], found, wanted):
                        yield {**proposal, name: spec}
            # A size that is given as a number leaves no trace in the tensors that are made of it.
            if not operand.origins:
                for name, value in proposal.items():
                    if type(value) is int and value * wanted % found == 0:
                        yield {**proposal, name: value * wanted // found}


def _disagreements(place: int, operands: tuple[Operand, ...], numbers: list[int]) -> list[tuple[int, int]]:
    """The sizes of an operand that the error speaks of, each with those of the others that it speaks of too."""
    own = [size for size in operands[place].shape if size in numbers]
    theirs = [size for other, operand in enumerate(operands) if other != place for size in operand.shape]
    likely = [size for size in theirs if size in numbers and size not in operands[place].shape]
    pairs = [(found, wanted) for found in reversed(own) for wanted in likely if found != wanted and wanted > 1]
    return list(dict.fromkeys(pairs))


def rescaled(spec: TensorSpec, found: int, wanted: int) -> Iterator[TensorSpec]:
    """The argument with a size such that what was `found` becomes `wanted`: it, a multiple of it, or some more."""
    same = [axis for axis, size in enumerate(spec.shape) if size == found]
    for axis in reversed(same):
        yield spec.resized({axis: wanted})
    if len(same) > 1:
        yield spec.resized(dict.fromkeys(same, wanted))
    for axis, size in enumerate(spec.shape):
        if axis and size != found and size * wanted % found == 0 and 0 < size * wanted // found <= _LARGEST:
            yield spec.resized({axis: size * wanted // found})
    for axis, size in enumerate(spec.shape):
        if axis and size < found and abs(wanted - found) <= _FEW and size + wanted - found > 0:
            yield spec.resized({axis: size + wanted - found})
