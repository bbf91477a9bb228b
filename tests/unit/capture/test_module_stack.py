"""Call numbers in the keys of `nn_module_stack`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from modelexport.capture.module_stack import call_index, read_module_stack


@pytest.mark.parametrize(
    ("key", "name", "index"),
    [
        ("", "", 0),
        ("@1", "", 1),
        ("L__self___lin", "lin", 0),
        ("L__self___lin@2", "lin", 2),
        ("layers.1@1", "layers.1", 1),
        ("1@1", "1", 1),
        ("140234@2", "2", 2),
        ("a@1", "a@1", 0),
        ("a@1@3", "a@1", 3),
        ("other@1", "lin", 0),
    ],
)
def test_index_is_the_count_after_the_name_or_id(key: str, name: str, index: int) -> None:
    assert call_index(key, name) == index


def test_second_call_of_a_module_named_by_a_number_has_index_one() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.ReLU(), nn.Linear(2, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(self.layers(x))

    program = torch.export.export(Twice(), (torch.ones(1, 2),), strict=False)
    stacks = [read_module_stack(node) for node in program.graph.nodes if "linear" in str(node.target)]
    assert [(entry.path, entry.index) for stack in stacks for entry in stack[-1:]] == [("layers.1", 0), ("layers.1", 1)]
    assert stacks[0][-1].class_name == "torch.nn.modules.linear.Linear"
