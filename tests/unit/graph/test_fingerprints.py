"""Fingerprints know a tensor again, and tell it from others; the eager run keeps who computed what."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from modelexport.capture.by_value.attribution_by_value import match_inputs, run_onnx
from modelexport.capture.by_value.eager_graph import EagerGraph, EagerRun
from modelexport.capture.by_value.eager_recording import run_eagerly
from modelexport.capture.by_value.torch_fingerprints import take_torch_fingerprint
from modelexport.capture.module_tree import read_module_tree
from modelexport.errors import InputError, StrategyIncompatibleError
from modelexport.graph import fingerprints
from modelexport.graph.fingerprints import Fingerprint, ValueIndex
from modelexport.hierarchy.calls import ROOT_CALL, CallId


def taken(tensor: torch.Tensor) -> Fingerprint:
    found = take_torch_fingerprint(tensor)
    assert found is not None
    return found


# --- fingerprints ----------------------------------------------------------------------------------------------


@given(shape=st.lists(st.integers(1, 6), min_size=1, max_size=4), seed=st.integers(0, 999), data=st.data())
@settings(max_examples=60, deadline=None)
def test_tensor_is_known_again_in_any_layout(shape: list[int], seed: int, data: st.DataObject) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    axes = data.draw(st.permutations(range(len(shape))))
    other = tensor.permute(axes).contiguous()
    assert taken(tensor).same_values(taken(other))
    assert taken(tensor).is_copy(taken(other))
    assert taken(tensor).same_values(taken(tensor.reshape(-1)))
    assert taken(tensor).same_layout(taken(other)) == (other.shape == tensor.shape and torch.equal(other, tensor))


def test_layout_is_told_from_another_with_the_same_shape() -> None:
    tensor = torch.randn(9, 9)
    assert not taken(tensor).same_layout(taken(tensor.T))
    assert not taken(tensor).same_layout(taken(tensor.reshape(3, 27)))


def test_fingerprint_of_a_view_equals_the_one_taken_from_the_whole() -> None:
    tensor = torch.randn(4, 5, 60)
    view = tensor.transpose(0, 2)
    moved, whole = take_torch_fingerprint(view, taken(tensor)), taken(view)
    assert moved is not None
    assert moved.group == whole.group
    assert moved.shape == whole.shape
    assert moved.same_layout(whole)
    np.testing.assert_allclose(moved.features, whole.features, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("noise", [1e-7, 1e-6, 1e-5])
def test_noise_of_another_runtime_makes_no_difference(noise: float) -> None:
    tensor = torch.randn(3, 500)
    other = tensor + noise * torch.randn(3, 500)
    assert taken(tensor).same_layout(taken(other))
    assert not taken(tensor).is_copy(taken(other))


@pytest.mark.parametrize("factor", [1.002, 0.99, -1.0])
def test_scaled_tensor_is_another(factor: float) -> None:
    tensor = torch.randn(3, 500)
    assert not taken(tensor).same_values(taken(tensor * factor))


@pytest.mark.parametrize("size", [5, 33, 4096])
def test_tensor_of_the_same_distribution_is_another(size: int) -> None:
    one, other = torch.randn(2, size)
    assert not taken(one).same_values(taken(other))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_tensor_is_known_again_in_another_precision(dtype: torch.dtype) -> None:
    tensor = torch.randn(40, 50)
    assert taken(tensor).same_layout(taken(tensor.to(dtype)))


def test_elements_of_different_kinds_are_never_equal() -> None:
    ones = torch.ones(4, 4)
    kinds = [taken(ones), taken(ones.int()), taken(ones.bool())]
    assert [one.same_values(other) for one in kinds for other in kinds].count(True) == len(kinds)
    assert taken(ones.int()).same_values(taken(ones.long()))


@pytest.mark.parametrize("masked", [-torch.inf, torch.finfo(torch.float32).min, -1e30])
def test_masked_elements_do_not_drown_the_others(masked: float) -> None:
    one, other = torch.randn(2, 200)
    one[50:], other[50:] = masked, masked
    assert taken(one).is_distinctive
    assert taken(one).same_layout(taken(one + 1e-6))
    assert not taken(one).same_values(taken(other))
    assert not taken(one).same_values(taken(torch.cat([one[:51], other[:149]])))


def test_lowest_half_stands_for_infinity_as_the_lowest_float_does() -> None:
    scores = torch.randn(8, 8)
    scores[:, 5:] = torch.finfo(torch.float32).min
    half = scores.clamp(min=torch.finfo(torch.float16).min).half()
    assert taken(scores).same_layout(taken(half))


def test_undefined_elements_count() -> None:
    one = torch.randn(50)
    other = one.clone()
    other[3] = torch.nan
    assert not taken(one).same_values(taken(other))
    assert taken(other).same_layout(taken(other.clone()))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(100),
        torch.eye(30),
        torch.ones(3, 3).triu().log(),
        torch.arange(9),
        torch.rand(50) > 0.5,
        torch.tensor(0.37),
        torch.tensor([0.1, 0.2, 0.3]),
    ],
    ids=["zeros", "two values", "mask", "whole numbers", "booleans", "scalar", "three values"],
)
def test_few_values_are_no_evidence(tensor: torch.Tensor) -> None:
    assert not taken(tensor).is_distinctive


def test_many_values_among_zeros_are_evidence() -> None:
    tensor = torch.zeros(100_000)
    tensor[70_000:70_010] = torch.randn(10)
    assert taken(tensor).is_distinctive


def test_what_cannot_be_read_has_no_fingerprint() -> None:
    assert take_torch_fingerprint(torch.zeros(0, 3)) is None
    assert take_torch_fingerprint(torch.eye(3).to_sparse()) is None
    assert take_torch_fingerprint(torch.empty(3, device="meta")) is None
    assert fingerprints.take_fingerprint(np.array(["text"])) is None


def test_complex_numbers_are_compared_by_their_parts() -> None:
    tensor = torch.randn(5, dtype=torch.complex64)
    assert taken(tensor).same_layout(taken(torch.view_as_real(tensor)))
    assert not taken(tensor).same_values(taken(tensor.conj()))


@pytest.mark.parametrize("size", [3, 10**6 + 3])
def test_fingerprint_costs_a_few_hundred_bytes(size: int) -> None:
    assert taken(torch.randn(size)).features.nbytes < 300


def test_large_tensor_gives_the_same_in_one_piece_or_several(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(100, 77)
    whole = taken(tensor)
    monkeypatch.setattr("modelexport.graph.fingerprints._CHUNK", 1000)
    pieces = taken(tensor)
    assert pieces.is_copy(whole)
    lowest, highest = tensor.flatten().sort().values[:6], tensor.flatten().sort().values[-6:]
    np.testing.assert_array_equal(pieces.features[5:17], torch.cat([lowest, highest]).numpy())


# --- the index -------------------------------------------------------------------------------------------------


def test_index_finds_equal_values_in_order_and_no_others() -> None:
    one, other = torch.randn(2, 6, 8)
    index = ValueIndex([taken(one), None, taken(other), taken(one.T), taken(one.reshape(48))])
    assert index.find(taken(one + 1e-7)) == [0, 3, 4]
    assert index.find(taken(torch.randn(6, 8))) == []
    assert index.find(taken(torch.randn(3))) == []


def test_index_prefers_the_closest_where_several_are_near() -> None:
    """As along a residual stream whose layers add next to nothing."""
    stream = [torch.randn(4, 64)]
    for _ in range(4):
        stream.append(stream[-1] + 2e-5 * torch.randn(4, 64))
    index = ValueIndex([taken(tensor) for tensor in stream])
    assert [index.find(taken(tensor + 1e-8)) for tensor in stream] == [[0], [1], [2], [3], [4]]


# --- the eager run ---------------------------------------------------------------------------------------------


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


def test_calls_are_seen_with_index_parent_and_named_boundary() -> None:
    seen = run(Net().eval(), torch.randn(6, 6))
    assert [str(call) for call in seen.calls] == ["", "lin", "halve", "drop", "halve@1"]
    assert seen.calls[CallId("halve", 1)].parent == ROOT_CALL
    assert [tensor.name for tensor in seen.calls[CallId("lin")].inputs] == ["input"]
    assert [tensor.name for tensor in seen.calls[CallId("lin")].outputs] == ["output"]


def test_values_are_followed_from_call_to_call_through_views() -> None:
    seen = run(Net().eval(), torch.randn(6, 6))
    eager = EagerGraph(seen)
    start = seen.calls[CallId("lin")].outputs[0].value
    assert seen.calls[CallId("halve")].inputs[0].value in eager.spread({start})
    assert eager.constant.isdisjoint(tensor.value for tensor in seen.calls[ROOT_CALL].outputs)
    made = eager.makers[seen.calls[CallId("halve")].outputs[0].value]
    region = eager.region([number for number in made if number not in eager.passing], {start}, set())
    assert {str(eager.call(number)) for number in region} == {"", "halve"}


def test_call_that_returns_what_it_was_given_passes_it_on() -> None:
    seen = run(Net().eval(), torch.randn(6, 6))
    passing = EagerGraph(seen).passing
    assert CallId("drop") in {seen.operations[number].call for number in passing}
    assert CallId("halve") not in {seen.operations[number].call for number in passing}


def test_change_through_a_view_makes_a_new_value_of_the_call_that_changed_it() -> None:
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
    makers = EagerGraph(seen).makers[call.outputs[0].value]
    assert [seen.operations[number].call for number in makers] == [CallId("write")]


def test_weights_that_were_read_are_known_by_name() -> None:
    seen = run(Net().eval(), torch.randn(6, 6))
    assert {"lin.weight", "lin.bias"} <= set(seen.weights)
    eager = EagerGraph(seen)
    assert {seen.weights["lin.weight"], seen.weights["lin.bias"]} <= eager.constant


def test_model_inputs_and_torch_are_left_as_they_were() -> None:
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


def test_hooks_are_gone_after_a_failed_run() -> None:
    model = Net()
    with pytest.raises(RuntimeError):
        run(model, torch.randn(3, 2))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_control_flow_still_runs_after_it_was_watched() -> None:
    class Cond(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))

    model, x = Cond(), torch.ones(3)
    run(model, x)
    with torch.no_grad():
        assert torch.equal(model(x), torch.full((3,), 2.0))


# --- the ONNX run ----------------------------------------------------------------------------------------------


def graph(*inputs: str) -> ir.Model:
    """Adds up its inputs and a weight, one after the other."""
    values = [ir.Value(name=name, shape=ir.Shape([2, 5]), type=ir.TensorType(ir.DataType.FLOAT)) for name in inputs]
    weight = ir.Value(name="weight", const_value=ir.tensor(np.arange(10, dtype=np.float32).reshape(2, 5)))
    nodes: list[ir.Node] = []
    total = values[0]
    for number, value in enumerate([*values[1:], weight]):
        nodes.append(ir.node("Add", [total, value], outputs=[ir.Value(name=f"sum_{number}")]))
        total = nodes[-1].outputs[0]
    made = ir.Graph(values, [total], nodes=nodes, initializers=[weight], opset_imports={"": 20}, name="sums")
    return ir.Model(made, ir_version=10)


def tensors(*names: str) -> list[tuple[str, torch.Tensor]]:
    return [(name, torch.zeros(2, 5)) for name in names]


@pytest.mark.parametrize(
    ("wanted", "given_names", "places"),
    [
        (("a", "b"), ("b", "a"), {"a": 1, "b": 0}),
        (("pair_0", "options_scale"), ("options.scale", "pair.0"), {"pair_0": 1, "options_scale": 0}),
        (("x1", "x2"), ("a", "b"), {"x1": 0, "x2": 1}),
        (("x1", "a"), ("a", "b"), {"x1": 1, "a": 0}),
        (("b",), ("a", "b"), {"b": 1}),
    ],
    ids=["by name", "nested", "by order", "the rest by order", "not all are read"],
)
def test_inputs_are_matched(wanted: tuple[str, ...], given_names: tuple[str, ...], places: dict[str, int]) -> None:
    assert match_inputs(graph(*wanted).graph, tensors(*given_names)) == places


def test_input_without_a_tensor_is_named() -> None:
    with pytest.raises(InputError, match=r"reads a, b, .* 1 tensors \(a\): nothing is left for 'b'"):
        match_inputs(graph("a", "b").graph, tensors("a"))


def test_graph_that_cannot_run_is_reported_in_one_line() -> None:
    feeds = {"a": np.zeros((3, 4), np.float32), "b": np.zeros((2, 5), np.float32)}
    with pytest.raises(StrategyIncompatibleError, match="onnxruntime cannot run the graph: ") as caught:
        run_onnx(graph("a", "b"), feeds, 40)
    assert "\n" not in str(caught.value)


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


def test_branch_that_is_not_taken_is_seen_in_its_place() -> None:
    seen = run(Choosing(), -torch.ones(2, 3))
    assert [str(call) for call in seen.calls] == ["", "yes", "no", "after"]
    (decision,) = [operation for operation in seen.operations if operation.bodies]
    assert [{str(o.call) for o in body.operations} for body in decision.bodies] == [{"yes"}, {"no", ""}]
    assert all(body.given == decision.bodies[0].given for body in decision.bodies)
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
def test_branch_that_fails_or_changes_something_when_tried_out_counts_as_not_seen(besides: Any) -> None:
    model = Choosing(besides)
    state = torch.random.get_rng_state()
    seen = run(model, -torch.ones(2, 3))
    assert [str(call) for call in seen.calls] == ["", "no", "after"]
    (decision,) = [operation for operation in seen.operations if operation.bodies]
    assert [{str(o.call) for o in body.operations} for body in decision.bodies] == [{"no", ""}]
    assert (model.seen, model.count.item()) == (0, 0)
    assert torch.equal(state, torch.random.get_rng_state())
    # What comes behind was computed as if nothing had been tried out.
    expected = taken(model.after(model.no(-torch.ones(2, 3)) * 2).detach())
    known = seen.fingerprints[seen.calls[ROOT_CALL].outputs[0].value]
    assert known is not None
    assert known.same_layout(expected)


def test_of_a_loop_the_last_round_is_kept_and_its_calls_count_once() -> None:
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
    (loop,) = [operation for operation in seen.operations if operation.bodies]
    _, body = loop.bodies
    assert len(body.operations) < 5
    assert body.results[1] not in body.given
    known = [seen.fingerprints[number] for number in (body.results[1], loop.outputs[1])]
    assert known[0] is not None
    assert known[1] is not None
    assert known[0].same_layout(known[1])
