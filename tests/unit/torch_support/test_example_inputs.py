"""Example inputs as people write them, and the tensors inside what a forward takes and returns."""

from __future__ import annotations

import collections
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from torch import nn

import modelexport
from modelexport.capture.module_tree import read_forward_arguments
from modelexport.errors import InputError
from modelexport.torch_support.example_inputs import normalize_inputs
from modelexport.torch_support.tensor_paths import named_arguments, named_results, tensors_in

A, B, C, D = (torch.full((1,), float(i)) for i in range(4))


def named(found: Iterator[tuple[str, torch.Tensor]]) -> list[tuple[str, int]]:
    """Names with the identity of their tensors: equal values are not enough."""
    return [(name, id(tensor)) for name, tensor in found]


def ways(expected: dict[str, torch.Tensor]) -> list[tuple[str, int]]:
    """The same of what is expected."""
    return named(iter(expected.items()))


# --- example inputs --------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


NORMALIZED = {
    "a tensor": (A, None, (A,), {}),
    "a parameter": (nn.Parameter(A), None, (A,), {}),
    "a tuple": ((A, B), None, (A, B), {}),
    "a list": ([A, B], None, (A, B), {}),
    "an empty tuple": ((), None, (), {}),
    "a namedtuple": (Pair(A, B), None, (A, B), {}),
    "a dict": ({"x": A, "y": B}, None, (), {"x": A, "y": B}),
    "an ordered dict": (collections.OrderedDict(x=A), None, (), {"x": A}),
    "another mapping": (collections.UserDict({"x": A}), None, (), {"x": A}),
    "an empty dict": ({}, None, (), {}),
    "a nested tuple": (((A, [B]), {"c": C}, D), None, ((A, [B]), {"c": C}, D), {}),
    "a tuple that ends in a dict": ((A, {"y": B}), None, (A,), {"y": B}),
    "a tuple that ends in an empty dict after a dict": ((A, {"y": B}, {}), None, (A, {"y": B}), {}),
    "a tuple with None and numbers": ((A, None, 3, "x", True), None, (A, None, 3, "x", True), {}),
    "a tensor and keywords": (A, {"y": B}, (A,), {"y": B}),
    "a dict and keywords": ({"x": A}, {"y": B}, (), {"x": A, "y": B}),
    "a tuple that ends in a dict, and keywords": (({"a": A},), {"y": B}, ({"a": A},), {"y": B}),
}


@pytest.mark.parametrize(("example", "kwargs", "args", "keywords"), NORMALIZED.values(), ids=NORMALIZED)
def test_example_inputs_become_arguments(
    example: object, kwargs: dict[str, Any] | None, args: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    assert normalize_inputs(example, kwargs) == (args, keywords)


class TakesDict(nn.Module):
    """Its only argument is a dict."""

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.addmm(batch["y"], batch["x"], batch["x"])


class TakesDictAndScale(nn.Module):
    """Its first argument is a dict."""

    def forward(self, batch: dict[str, torch.Tensor], scale: float = 1.0) -> torch.Tensor:
        return batch["x"] * scale


@pytest.mark.parametrize(
    ("example", "args", "keywords"),
    [
        (({"x": A},), ({"x": A},), {}),
        (({"x": A}, {}), ({"x": A},), {}),
        (({"x": A}, {"scale": 2.0}), ({"x": A},), {"scale": 2.0}),
        (({"batch": {"x": A}},), (), {"batch": {"x": A}}),
        ((1, 2, {"x": A}), (1, 2), {"x": A}),
    ],
    ids=["alone", "before an empty dict", "before keywords", "as keywords", "fits neither way"],
)
def test_dict_at_the_end_is_positional_where_the_model_takes_it_in_no_other_way(
    example: tuple[Any, ...], args: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    assert normalize_inputs(example, None, TakesDictAndScale()) == (args, keywords)


@pytest.mark.parametrize("strategy", ["fx", "htp", "usage_based"])
def test_model_that_takes_a_dict_is_exported(strategy: str, tmp_path: Path) -> None:
    batch = {"x": torch.rand(3, 3), "y": torch.rand(3, 3)}
    result = modelexport.export_model(TakesDict(), (batch,), tmp_path / "m.onnx", strategy=strategy)
    (root,) = result.document.calls
    if strategy != "usage_based":
        assert [tensor.name for tensor in root.inputs] == ["batch.x", "batch.y"]
    session = onnxruntime.InferenceSession(result.onnx_path)
    feeds = dict(zip((i.name for i in session.get_inputs()), (t.numpy() for t in batch.values()), strict=True))
    np.testing.assert_allclose(session.run(None, feeds)[0], TakesDict()(batch).numpy(), rtol=1e-5)


def test_example_inputs_of_a_tokenizer_become_keyword_arguments() -> None:
    transformers = pytest.importorskip("transformers")
    encoding = transformers.BatchEncoding({"input_ids": A, "attention_mask": B})
    assert normalize_inputs(encoding, None) == ((), {"input_ids": A, "attention_mask": B})


def test_arguments_do_not_share_containers_with_the_example_inputs() -> None:
    inputs, last, kwargs = [A, {"y": B}], {"y": B}, {"z": C}
    args, keywords = normalize_inputs(inputs, None)
    keywords["more"] = D
    assert inputs == [A, {"y": B}]
    for example in (last, (A, last)):
        _, keywords = normalize_inputs(example, None)
        keywords["more"] = D
    assert last == {"y": B}
    _, keywords = normalize_inputs(args, kwargs)
    keywords["more"] = D
    assert kwargs == {"z": C}


@pytest.mark.parametrize("example", [None, 1, 1.5, "text", b"bytes", np.ones(2), {1, 2}, iter(()), object(), nn.ReLU()])
def test_example_inputs_of_another_type_are_refused_by_its_name(example: object) -> None:
    with pytest.raises(InputError, match=rf"\b{type(example).__name__}\b.*tensor.*tuple.*list.*dict"):
        normalize_inputs(example, None)


def test_input_given_twice_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="both have x, y: give each input once"):
        normalize_inputs({"y": A, "x": B, "z": C}, {"x": A, "y": B})


@pytest.mark.parametrize("example", [{1: A}, (A, {1: B}), {"x": A, None: B}])
def test_keyword_that_is_not_a_string_is_refused_by_name(example: object) -> None:
    with pytest.raises(InputError, match=r"keyword argument (1|None) .* not a string"):
        normalize_inputs(example, None)


# --- arguments of a call ---------------------------------------------------------------------------------------


class Plain(nn.Module):
    def forward(self, x: Any, mask: Any = None, /, state: Any = None, *rest: Any, scale: Any = 1, **more: Any) -> Any:
        raise NotImplementedError


class Two(nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        raise NotImplementedError


CALLS = {
    "by position": (Plain, (A, B), {}, ways({"x": A, "mask": B})),
    "by keyword": (Two, (), {"y": A, "x": B}, ways({"y": A, "x": B})),
    "by position and keyword": (Plain, (A,), {"scale": B, "state": C}, ways({"x": A, "scale": B, "state": C})),
    "beyond the named ones": (
        Plain,
        (A, None, None, B, (C, D)),
        {},
        ways({"x": A, "rest.0": B, "rest.1.0": C, "rest.1.1": D}),
    ),
    "by a keyword nobody named": (Plain, (A,), {"other": B}, ways({"x": A, "other": B})),
    "nested": (Two, ((A, [B]), {"k": {"v": C}}), {}, ways({"x.0": A, "x.1.0": B, "y.k.v": C})),
    "without tensors": (Two, (1, "text"), {}, []),
    "the same tensor twice": (Two, (A, A), {}, ways({"x": A, "y": A})),
    "nothing": (Plain, (), {}, []),
}


@pytest.mark.parametrize(("module", "args", "kwargs", "expected"), CALLS.values(), ids=CALLS)
def test_tensors_of_a_call_have_the_names_of_the_arguments(
    module: type[nn.Module], args: tuple[Any, ...], kwargs: dict[str, Any], expected: list[tuple[str, int]]
) -> None:
    arguments = tuple(read_forward_arguments(module()))
    inspect.signature(module().forward).bind_partial(*args, **kwargs)  # a call that Python would make
    assert named(named_arguments(arguments, args, kwargs)) == expected


def test_arguments_of_a_forward_that_python_cannot_read_are_numbered() -> None:
    assert named(named_arguments((), (A, B), {"k": C})) == ways({"args.0": A, "args.1": B, "k": C})


# --- results and nested values ---------------------------------------------------------------------------------


@dataclasses.dataclass
class Result:
    logits: torch.Tensor
    states: tuple[torch.Tensor, ...] = ()
    extra: object = None


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    logits: torch.Tensor


class Cache:
    """Holds its tensors in attributes, as caches do."""

    def __init__(self, *layers: object) -> None:
        self.layers = layers
        self.length = 3


def packed() -> torch.nn.utils.rnn.PackedSequence:
    return torch.nn.utils.rnn.PackedSequence(A, B)


RESULTS: dict[str, tuple[object, list[tuple[str, int]]]] = {
    "a tensor": (A, ways({"output": A})),
    "None": (None, []),
    "a number": (1.5, []),
    "text": ("text", []),
    "a tuple": ((A, B), ways({"0": A, "1": B})),
    "a list with gaps": ([A, None, 3, B], ways({"0": A, "3": B})),
    "a namedtuple": (Pair(A, B), ways({"first": A, "second": B})),
    "a dict": ({"x": A, "y": B}, ways({"x": A, "y": B})),
    "a dict with numbers for keys": ({0: A, 5: B}, ways({"0": A, "5": B})),
    "another mapping": (collections.UserDict(x=A), ways({"x": A})),
    "a dataclass": (Result(A, (B, C), {"d": D}), ways({"logits": A, "states.0": B, "states.1": C, "extra.d": D})),
    "a dataclass with slots": (Slotted(A), ways({"logits": A})),
    "a dataclass in a tuple in a dict": ({"r": (Result(A),)}, ways({"r.0.logits": A})),
    "an object with attributes": (Cache(A, {"k": B}), ways({"layers.0": A, "layers.1.k": B})),
    "a packed sequence": (packed(), ways({"data": A, "batch_sizes": B})),
    "a registered pytree": (collections.deque([A, [B]]), ways({"0": A, "1.0": B})),
    "a module": (nn.Linear(1, 1), []),
    "a class": (Result, []),
}


@pytest.mark.parametrize(("result", "expected"), RESULTS.values(), ids=RESULTS)
def test_tensors_of_a_result_have_the_names_of_its_fields(result: object, expected: list[tuple[str, int]]) -> None:
    assert named(named_results(result)) == expected


def test_results_of_torch_operations_are_numbered() -> None:
    result = torch.ones(2, 3).max(0)
    assert named(named_results(result)) == ways({"0": result.values, "1": result.indices})


def test_tensors_of_a_transformers_output_have_the_names_of_its_fields() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    result = outputs.BaseModelOutputWithPast(last_hidden_state=A, hidden_states=(B, C))
    assert named(named_results(result)) == ways({"last_hidden_state": A, "hidden_states.0": B, "hidden_states.1": C})


def test_tensors_of_a_transformers_cache_have_the_names_of_layer_and_kind() -> None:
    transformers = pytest.importorskip("transformers")
    cache = transformers.DynamicCache()
    for layer in range(2):
        cache.update(torch.ones(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), layer)
    found = named(named_arguments((), (), {"past_key_values": cache}))
    first, second = cache.layers
    assert found == ways(
        {
            "past_key_values.layers.0.keys": first.keys,
            "past_key_values.layers.0.values": first.values,
            "past_key_values.layers.1.keys": second.keys,
            "past_key_values.layers.1.values": second.values,
        }
    )


containers: list[Callable[[st.SearchStrategy[Any]], st.SearchStrategy[Any]]] = [
    lambda inner: st.lists(inner, max_size=3),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    lambda inner: st.builds(Result, inner, st.just(()), inner),
    lambda inner: st.builds(Pair, inner, inner),
    lambda inner: st.lists(inner, max_size=2).map(lambda layers: Cache(*layers)),
]
values = st.recursive(
    st.one_of(st.none(), st.integers(), st.builds(torch.empty, st.just(0))),
    lambda inner: st.one_of(*(container(inner) for container in containers)),
    max_leaves=12,
)


def follow(value: Any, way: str) -> object:
    """What the name leads to."""
    for step in way.split("."):
        if isinstance(value, dict):
            value = value[step]
        elif step.isdigit():
            value = value[int(step)]
        else:
            value = getattr(value, step)
    return value


def count_tensors(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return 1
    if isinstance(value, dict):
        return sum(map(count_tensors, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(count_tensors, value))
    return sum(map(count_tensors, vars(value).values())) if isinstance(value, Result | Cache) else 0


def depth(value: Any) -> int:
    if isinstance(value, dict | Result | Cache):
        value = list(value.values() if isinstance(value, dict) else vars(value).values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list | tuple) else 0


@settings(max_examples=150, deadline=None)
@given(values)
def test_each_tensor_is_found_once_and_named_by_its_path(value: object) -> None:
    found = list(tensors_in(value, ""))
    for name, tensor in found:
        assert tensor is (follow(value, name.removeprefix(".")) if name else value)
    assert len({name for name, _ in found}) == len(found)
    if depth(value) <= 8:
        assert len(found) == count_tensors(value)


def test_deep_nesting_ends_the_search_without_an_error() -> None:
    value: object = A
    for _ in range(5000):
        value = [value]
    assert list(named_results(value)) == []


def test_object_that_refers_to_itself_gives_each_tensor_once() -> None:
    cache = Cache(A, B)
    cache.owner = cache
    assert named(named_results(cache)) == ways({"layers.0": A, "layers.1": B})
