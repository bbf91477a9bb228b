"""A tensor to make up, as a description that can be changed before the tensor is made."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any

import torch

_LARGEST_SIZE = 1 << 16
_MOST_ELEMENTS = 1 << 24
_MOST_TOKENS = 1 << 13
_SEED = 0


class Kind(enum.StrEnum):
    """What a made-up tensor holds."""

    NUMBERS = "numbers"
    TOKENS = "tokens"
    ONES = "ones"
    TRUTH = "truth"
    POSITIONS = "positions"


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """A tensor to make: its shape, what it holds, and tokens that must be among what it holds.

    With `copies` it is a list of so many of them.
    """

    shape: tuple[int, ...]
    kind: Kind = Kind.NUMBERS
    below: int = 2
    placeholders: tuple[tuple[int, int], ...] = ()
    rows: tuple[tuple[int, ...], ...] = ()
    copies: int = 0

    @property
    def is_bounded(self) -> bool:
        """Whether it is small enough to be tried."""
        sizes_fit = all(0 < size <= _LARGEST_SIZE for size in self.shape)
        return sizes_fit and math.prod(self.shape) <= _MOST_ELEMENTS

    def resized(self, axes: dict[int, int]) -> TensorSpec:
        """The same with other sizes."""
        shape = tuple(axes.get(axis, size) for axis, size in enumerate(self.shape))
        return dataclasses.replace(self, shape=shape)

    def make(self, generator: torch.Generator, dtype: torch.dtype, avoided: frozenset[int]) -> torch.Tensor:
        """The tensor; `avoided` are token numbers with a meaning of their own."""
        if self.rows:
            return torch.tensor(self.rows, dtype=torch.int64)
        if self.kind is Kind.NUMBERS:
            return torch.randn(self.shape, generator=generator).to(dtype)
        if self.kind is Kind.TRUTH:
            return torch.ones(self.shape, dtype=torch.bool)
        if self.kind is Kind.ONES:
            return torch.ones(self.shape, dtype=torch.int64)
        if self.kind is Kind.POSITIONS:
            return torch.arange(self.shape[-1] if self.shape else 1).expand(self.shape or (1,)).reshape(self.shape)
        return self._tokens(generator, avoided)

    def _tokens(self, generator: torch.Generator, avoided: frozenset[int]) -> torch.Tensor:
        usual = [token for token in range(min(self.below, _MOST_TOKENS)) if token not in avoided] or [0]
        picked = torch.randint(0, len(usual), self.shape, generator=generator)
        tokens = torch.tensor(usual)[picked]
        start = 1
        for token, count in self.placeholders:
            tokens[..., start : start + count] = token
            start += count
        return tokens

    def __str__(self) -> str:
        times = f"{self.copies} times " if self.copies else ""
        return f"{times}{'x'.join(map(str, self.shape)) or 'scalar'} {self.kind.value}"


Proposal = dict[str, Any]


def tensors(proposal: Proposal) -> list[tuple[str, TensorSpec]]:
    """The tensors of a proposal whose shapes may be changed."""
    return [(name, spec) for name, spec in proposal.items() if isinstance(spec, TensorSpec) and not spec.rows]


def make_tensors(proposal: Proposal, dtype: torch.dtype, avoided: frozenset[int]) -> dict[str, Any]:
    """The arguments a proposal stands for: the same each time. A name with a dot is a part of an argument."""
    generator = torch.Generator().manual_seed(_SEED)
    arguments: dict[str, Any] = {}
    for name, spec in proposal.items():
        value = spec
        if isinstance(spec, TensorSpec):
            made = [spec.make(generator, dtype, avoided) for _ in range(spec.copies or 1)]
            value = made if spec.copies else made[0]
        whole, _, part = name.partition(".")
        if part:
            arguments.setdefault(whole, {})[part] = value
        else:
            arguments[whole] = value
    return arguments
