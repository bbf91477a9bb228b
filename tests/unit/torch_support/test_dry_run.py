"""A part of a model that is tried out leaves no trace, whatever it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from modelexport.torch_support.dry_run import EffectError, Trial, try_out


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(()))
        self.seen: list[int] = [1]
        self.cache: dict[str, int] = {}
        self.number = 0


def _fail(net: Net) -> None:
    net.number = 3
    raise RuntimeError("no such branch")


@pytest.mark.parametrize(
    ("action", "done"),
    [
        (lambda net: net.lin(torch.rand(3)), True),
        (lambda net: setattr(net, "number", 1), False),
        (lambda net: setattr(net, "added", 1), False),
        (lambda net: net.seen.append(2), False),
        (lambda net: net.cache.update(a=1), False),
        (lambda net: setattr(net, "count", net.count + 1), False),
        (lambda net: setattr(net.lin, "bias", None), False),
        (lambda net: net.eval(), False),
        (_fail, False),
    ],
    ids=["computes", "sets", "adds", "lists", "keeps", "counts", "takes away", "switches", "fails"],
)
def test_model_is_as_before_and_what_changes_it_or_fails_is_told(action: Callable[[Net], Any], done: bool) -> None:
    net = Net()
    before, state, random = dict(net.__dict__), dict(net.state_dict()), torch.random.get_rng_state()
    bias = net.lin.bias
    assert try_out(net, lambda: action(net)) is done
    assert net.__dict__ == before
    assert (net.seen, net.cache, net.number, net.training) == ([1], {}, 0, True)
    assert net.lin.bias is bias
    assert net.count is state["count"] or torch.equal(net.count, state["count"])
    assert torch.equal(random, torch.random.get_rng_state())


class Watched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.trial = Trial()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.trial.check(func, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        self.trial.note(result, (args, kwargs))
        return result


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.add_(1),
        lambda x: x[1:].mul_(2),
        lambda x: x.view(2, 2).zero_(),
        lambda x: torch.add(x, 1, out=x),
        lambda x: torch._foreach_add_([x.clone(), x], 1),
    ],
    ids=["in place", "through a slice", "through a view", "as out", "in a list"],
)
def test_writing_to_what_was_there_before_is_stopped_before_it_happens(write: Callable[[torch.Tensor], Any]) -> None:
    x = torch.arange(4.0)
    with Watched(), pytest.raises(EffectError, match="writes to a tensor that was there before"):
        write(x)
    assert torch.equal(x, torch.arange(4.0))


def test_writing_to_what_the_trial_made_is_free() -> None:
    x = torch.arange(4.0)
    with Watched():
        y = (x * 2).view(2, 2)
        y[0].add_(1)
        y.relu_()
    assert y.tolist() == [[1, 3], [4, 6]]
