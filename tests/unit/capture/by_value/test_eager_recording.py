"""The record of an eager pass: calls, operators, views, weights, and functions of control flow."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from modelexport.capture.by_value.eager_graph import EagerGraph, EagerRun
from modelexport.capture.by_value.eager_recording import run_eagerly, take_torch_fingerprint
from modelexport.capture.module_tree import read_module_tree
from modelexport.hierarchy.calls import ROOT_CALL, CallId


class Halve(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 6)
        self.halve = Halve()
        self.drop = nn.Dropout()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        x = self.halve(self.lin(x.T).T)
        return self.halve(self.drop(x))


def run(model: nn.Module, *args: Any, **kwargs: Any) -> EagerRun:
    return run_eagerly(model, read_module_tree(model), args, kwargs)


def test_calls_are_recorded_with_index_parent_and_named_boundary() -> None:
    seen = run(Net().eval(), torch.randn(6, 6))
    assert [str(call) for call in seen.calls] == ["", "lin", "halve", "drop", "halve@1"]
    assert seen.calls[CallId("halve", 1)].parent == ROOT_CALL
    assert [tensor.name for tensor in seen.calls[CallId("lin")].inputs] == ["input"]
    assert [tensor.name for tensor in seen.calls[CallId("lin")].outputs] == ["output"]


def test_values_are_followed_from_call_to_call_through_views() -> None:
    seen = run(Net().eval(), torch.randn(6, 6))
    eager = EagerGraph(seen)
    start = seen.calls[CallId("lin")].outputs[0].value
    assert seen.calls[CallId("halve")].inputs[0].value in eager.with_copies({start})
    assert eager.constant.isdisjoint(tensor.value for tensor in seen.calls[ROOT_CALL].outputs)
    produced = eager.producers[seen.calls[CallId("halve")].outputs[0].value]
    region = eager.region([number for number in produced if number not in eager.copying], {start}, set())
    assert {str(eager.call(number)) for number in region} == {"", "halve"}


def test_call_that_returns_its_input_counts_as_a_copying_operator() -> None:
    seen = run(Net().eval(), torch.randn(6, 6))
    copying = EagerGraph(seen).copying
    assert CallId("drop") in {seen.operations[number].call for number in copying}
    assert CallId("halve") not in {seen.operations[number].call for number in copying}


def test_write_through_a_view_is_a_new_value_of_the_call_that_wrote() -> None:
    class Writer(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x[:, :2].mul_(3)
            return x

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.write = Writer()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            return self.write(y).exp()

    seen = run(Outer(), torch.randn(4, 4))
    call = seen.calls[CallId("write")]
    assert call.inputs[0].value != call.outputs[0].value
    producers = EagerGraph(seen).producers[call.outputs[0].value]
    assert [seen.operations[number].call for number in producers] == [CallId("write")]


def test_consumed_weights_are_recorded_by_name() -> None:
    seen = run(Net().eval(), torch.randn(6, 6))
    assert {"lin.weight", "lin.bias"} <= set(seen.weights)
    eager = EagerGraph(seen)
    assert {seen.weights["lin.weight"], seen.weights["lin.bias"]} <= eager.constant


def test_model_inputs_and_torch_do_not_change() -> None:
    class Changing(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return super().forward(x)

    model, x = Changing().eval(), torch.randn(6, 6)
    before = x.clone()
    fast = torch.backends.mha.get_fastpath_enabled()
    run(model, x)
    assert torch.equal(x, before)
    assert torch.equal(model.seen, torch.zeros(1))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.backends.mha.get_fastpath_enabled() == fast


def test_hooks_are_removed_after_a_failed_run() -> None:
    model = Net()
    with pytest.raises(RuntimeError):
        run(model, torch.randn(3, 2))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_control_flow_still_runs_after_a_recording() -> None:
    class Cond(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))

    model, x = Cond(), torch.ones(3)
    run(model, x)
    with torch.no_grad():
        assert torch.equal(model(x), torch.full((3,), 2.0))


# --- branches and loops ----------------------------------------------------------------------------------------


class Choosing(nn.Module):
    """A decision; what the branch that is not taken does besides is the test's to choose."""

    def __init__(self, besides: Any = None) -> None:
        super().__init__()
        self.yes = nn.Linear(3, 3)
        self.no = nn.Linear(3, 3)
        self.after = nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(()))
        self.seen = 0
        self.besides = besides

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def untaken(y: torch.Tensor) -> torch.Tensor:
            if self.besides is not None:
                self.besides(self, y)
            return self.yes(y)

        return self.after(torch.cond(x.sum() > 0, untaken, lambda y: self.no(y) * 2, (x,)))


def test_branch_that_is_not_taken_is_recorded_at_its_position() -> None:
    seen = run(Choosing(), -torch.ones(2, 3))
    assert [str(call) for call in seen.calls] == ["", "yes", "no", "after"]
    (decision,) = [operation for operation in seen.operations if operation.functions]
    assert [{str(o.call) for o in function.operations} for function in decision.functions] == [{"yes"}, {"no", ""}]
    assert all(function.inputs == decision.functions[0].inputs for function in decision.functions)
    assert all(seen.weights[name] in decision.inputs for name in ("yes.weight", "no.weight"))


def _fail(model: Choosing, y: torch.Tensor) -> None:
    raise RuntimeError("makes no sense here")


def _set(model: Choosing, y: torch.Tensor) -> None:
    model.seen += 1


def _count(model: Choosing, y: torch.Tensor) -> None:
    model.count += 1


def _change(model: Choosing, y: torch.Tensor) -> None:
    y.add_(1)


@pytest.mark.parametrize("besides", [_fail, _set, _count, _change])
def test_branch_whose_dry_run_fails_or_changes_state_is_not_recorded(besides: Any) -> None:
    model = Choosing(besides)
    state = torch.random.get_rng_state()
    seen = run(model, -torch.ones(2, 3))
    assert [str(call) for call in seen.calls] == ["", "no", "after"]
    (decision,) = [operation for operation in seen.operations if operation.functions]
    assert [{str(o.call) for o in function.operations} for function in decision.functions] == [{"no", ""}]
    assert (model.seen, model.count.item()) == (0, 0)
    assert torch.equal(state, torch.random.get_rng_state())
    # What ran after it was computed as if there had been no dry run.
    expected = take_torch_fingerprint(model.after(model.no(-torch.ones(2, 3)) * 2).detach())
    known = seen.fingerprints[seen.calls[ROOT_CALL].outputs[0].value]
    assert known is not None
    assert known.same_layout(expected)


def test_last_iteration_of_a_loop_is_recorded_and_its_calls_count_once() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def step(number: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return number + 1, self.cell(y)

            loop = torch._higher_order_ops.while_loop
            return self.cell(loop(lambda number, y: number < 3, step, (torch.tensor(0), x))[1])

    seen = run(Loop(), torch.randn(2, 3))
    assert [str(call) for call in seen.calls] == ["", "cell", "cell@1"]
    (loop,) = [operation for operation in seen.operations if operation.functions]
    _, function = loop.functions
    assert len(function.operations) < 5
    assert function.outputs[1] not in function.inputs
    known = [seen.fingerprints[number] for number in (function.outputs[1], loop.outputs[1])]
    assert known[0] is not None
    assert known[1] is not None
    assert known[0].same_layout(known[1])
