"""The description of a tensor to synthesize: it can be changed before the tensor is created."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any

import torch

_MAX_SIZE = 1 << 16
_MAX_ELEMENTS = 1 << 24
_MAX_TOKEN = 1 << 13
_SEED = 0


class Kind(enum.StrEnum):
    """What a synthesized tensor contains."""

    FLOATS = "floats"
    TOKENS = "tokens"
    ONES = "ones"
    BOOLS = "bools"
    POSITIONS = "positions"


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """A tensor to synthesize.

    Attributes:
        upper_bound: Tokens are smaller than this number.
        rows: The whole content, for a tensor whose values are sizes.
        dtype: Its element type; None for the usual one of its kind.
        rule: The name of the rule that guessed it; no part of what the tensor is.
    """

    shape: tuple[int, ...]
    kind: Kind = Kind.FLOATS
    upper_bound: int = 2
    rows: tuple[tuple[int, ...], ...] = ()
    dtype: torch.dtype | None = None
    rule: str = dataclasses.field(default="", compare=False, repr=False)

    @property
    def is_bounded(self) -> bool:
        """Whether it is small enough to be tried."""
        sizes_fit = all(0 < size <= _MAX_SIZE for size in self.shape)
        return sizes_fit and math.prod(self.shape) <= _MAX_ELEMENTS

    def resized(self, axes: dict[int, int]) -> TensorSpec:
        """The same tensor with other sizes on some axes."""
        return self.reshaped(tuple(axes.get(axis, size) for axis, size in enumerate(self.shape)))

    def reshaped(self, shape: tuple[int, ...]) -> TensorSpec:
        """The same tensor with another shape."""
        return dataclasses.replace(self, shape=shape)

    def create(self, generator: torch.Generator, dtype: torch.dtype, special_tokens: frozenset[int]) -> torch.Tensor:
        """Create the tensor; no special token is in it."""
        if self.rows:
            return torch.tensor(self.rows, dtype=torch.int64)
        if self.kind is Kind.FLOATS:
            return torch.randn(self.shape, generator=generator).to(dtype)
        if self.kind is Kind.BOOLS:
            return torch.ones(self.shape, dtype=torch.bool)
        if self.kind is Kind.ONES:
            return torch.ones(self.shape, dtype=torch.int64)
        if self.kind is Kind.POSITIONS:
            return torch.arange(self.shape[-1] if self.shape else 1).expand(self.shape or (1,)).reshape(self.shape)
        usual = [token for token in range(min(self.upper_bound, _MAX_TOKEN)) if token not in special_tokens] or [0]
        picked = torch.randint(0, len(usual), self.shape, generator=generator)
        return torch.tensor(usual)[picked]

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape)) or 'scalar'} {self.kind.value}"


# The arguments of a call by name: a TensorSpec for a tensor to synthesize, any other value as it is.
Proposal = dict[str, Any]


def create_arguments(proposal: Proposal, dtype: torch.dtype, special_tokens: frozenset[int]) -> dict[str, Any]:
    """Create the arguments of a proposal, always the same. A name with a dot is a part of an argument."""
    generator = torch.Generator().manual_seed(_SEED)
    arguments: dict[str, Any] = {}
    for name, spec in proposal.items():
        value = spec
        if isinstance(spec, TensorSpec):
            value = spec.create(generator, dtype, special_tokens).to(spec.dtype)
        whole, _, part = name.partition(".")
        if part:
            arguments.setdefault(whole, {})[part] = value
        else:
            arguments[whole] = value
    return arguments
