"""A dry run has no side effects."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn

from modelexport.torch_support.control_flow_watch import SideEffectError, WriteGuard, run_without_effects
from modelexport.torch_support.private import dispatch_mode


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
def test_model_is_restored_and_a_change_or_failure_is_returned(action: Callable[[Net], Any], done: bool) -> None:
    net = Net()
    before, state, random = dict(net.__dict__), dict(net.state_dict()), torch.random.get_rng_state()
    bias = net.lin.bias
    assert run_without_effects(net, lambda: action(net)) is done
    assert net.__dict__ == before
    assert (net.seen, net.cache, net.number, net.training) == ([1], {}, 0, True)
    assert net.lin.bias is bias
    assert net.count is state["count"] or torch.equal(net.count, state["count"])
    assert torch.equal(random, torch.random.get_rng_state())


def guarded() -> AbstractContextManager[Any]:
    guard = WriteGuard()

    def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        guard.check(func, args, kwargs)
        result = func(*args, **kwargs)
        guard.record(result, (args, kwargs))
        return result

    return dispatch_mode(run)


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
def test_write_to_an_existing_tensor_is_prevented(write: Callable[[torch.Tensor], Any]) -> None:
    x = torch.arange(4.0)
    with guarded(), pytest.raises(SideEffectError, match="writes to a tensor that existed before the dry run"):
        write(x)
    assert torch.equal(x, torch.arange(4.0))


def test_write_to_a_tensor_of_the_dry_run_is_allowed() -> None:
    x = torch.arange(4.0)
    with guarded():
        y = (x * 2).view(2, 2)
        y[0].add_(1)
        y.relu_()
    assert y.tolist() == [[1, 3], [4, 6]]
