"""LSTM, GRU and RNN: one node with many helper nodes, whose scope TorchScript loses."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import SIZE, batch


class Net(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.before = nn.Linear(SIZE, SIZE)
        self.rnn = kind(SIZE, 4, batch_first=True, **options)
        self.head = nn.Linear(8 if options.get("bidirectional") else 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sequence, _ = self.rnn(self.before(x))
        return self.head(sequence)


def _case(title: str, kind: type[nn.RNNBase], **options: Any) -> Case:
    return Case(
        title=title,
        build=lambda: (Net(kind, **options), batch(2, 5, SIZE)),
        calls={"": ("before", "rnn", "head")},
        expects=(Expect("rnn", ("rnn",), owner="rnn"), Expect("head", ("head",), owner="head")),
    )


CASES = {
    "lstm": _case("LSTM", nn.LSTM),
    "gru": _case("GRU", nn.GRU),
    "bidirectional": _case("a bidirectional LSTM of two layers", nn.LSTM, bidirectional=True, num_layers=2),
}
