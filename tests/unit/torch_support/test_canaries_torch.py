"""One test for each private API of torch's tensors, modules and operators.

The test that fails names the API that a release changed: it has the name of the function of `torch_support` around it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from modelexport.torch_support import private

pytestmark = pytest.mark.sanity


def test_storage_id() -> None:
    tensor = torch.ones(4)
    assert private.storage_id(tensor) == private.storage_id(tensor.view(2, 2)[1:])
    assert private.storage_id(tensor) != private.storage_id(tensor.clone())
    assert private.storage_id(torch.ones(2, 2).to_sparse()) is None


def test_storage_reference() -> None:
    tensor = torch.ones(4)
    assert private.storage_reference(tensor).cdata == private.storage_reference(tensor[1:]).cdata
    assert private.storage_reference(torch.ones(2, 2).to_sparse()) is None


def test_version_of() -> None:
    tensor = torch.ones(4)
    before = private.version_of(tensor)
    tensor[1:].add_(1)
    assert private.version_of(tensor) > before
    with torch.inference_mode():
        uncounted = torch.ones(1)
    with pytest.raises(RuntimeError):
        private.version_of(uncounted)


def test_base_of() -> None:
    tensor = torch.ones(4)
    assert private.base_of(tensor[1:]) is tensor
    assert private.base_of(tensor) is None


def test_is_functorch_wrapped() -> None:
    seen: list[bool] = []

    def look(row: torch.Tensor) -> torch.Tensor:
        seen.append(private.is_functorch_wrapped(row))
        return row * 2

    torch.vmap(look)(torch.ones(2, 3))
    assert seen == [True]
    assert not private.is_functorch_wrapped(torch.ones(1))


def test_has_forward_hooks() -> None:
    module = nn.ReLU()
    assert not private.has_forward_hooks(module)
    with torch.no_grad():
        handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert private.has_forward_hooks(module)
    handle.remove()
    module.register_forward_pre_hook(lambda *_: None)
    assert private.has_forward_hooks(module)


def test_global_hook_tables() -> None:
    before = [len(table) for table in private.global_hook_tables()]
    handle = nn.modules.module.register_module_buffer_registration_hook(lambda *_: None)
    assert sum(len(table) for table in private.global_hook_tables()) == sum(before) + 1
    handle.remove()


def test_children_of() -> None:
    model = nn.Module()
    model.one = model.two = nn.ReLU()
    model.none = None
    model.add_module("nothing", None)
    assert list(private.children_of(model)) == ["one", "two"]


def test_is_higher_order_operator() -> None:
    assert private.is_higher_order_operator(torch.ops.higher_order.cond)
    assert not private.is_higher_order_operator(torch.ops.aten.add.Tensor)


def test_is_operator_overload() -> None:
    assert private.is_operator_overload(torch.ops.aten.add.Tensor)
    assert not private.is_operator_overload(torch.add)


def test_schema_of() -> None:
    schema = private.schema_of(torch.ops.aten.add_.Tensor)
    assert schema.is_mutable
    assert [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write] == ["self"]
    assert private.schema_of(torch.add) is None


def test_written_arguments() -> None:
    x, y = torch.ones(2), torch.ones(2)
    (written,) = private.written_arguments(torch.ops.aten.add_.Tensor, (x, y), {})
    assert written is x
    (out,) = private.written_arguments(torch.ops.aten.add.out, (x, x), {"out": y})
    assert out is y
    assert private.written_arguments(torch.ops.aten.add.Tensor, (x, y), {}) == []


def test_is_control_flow() -> None:
    from torch._higher_order_ops import associative_scan, scan, while_loop

    operators = (torch.cond, scan, while_loop, associative_scan, torch.ops.higher_order.cond)
    assert all(private.is_control_flow(operator) for operator in operators)
    assert not any(private.is_control_flow(other) for other in (map, torch.relu, torch.ops.aten.relu, torch.nn.ReLU))


def test_dispatch_mode() -> None:
    seen: list[Any] = []

    def handle(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen.append(func)
        return func(*args, **kwargs)

    mode = private.dispatch_mode(handle)
    with mode, torch.compiler.set_stance("force_eager"):
        torch.ones(2) + 1
        torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.ones(1),))
        with mode:
            pass
    assert torch.ops.aten.add.Tensor in seen
    assert any(map(private.is_higher_order_operator, seen))


def test_higher_order_calls_through() -> None:
    called: list[str] = []

    def around(original: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        called.append(str(operator))
        return original(operator, *args, **kwargs)

    def branch() -> torch.Tensor:
        return torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.ones(1),))

    with torch.compiler.set_stance("force_eager"), private.higher_order_calls_through(around):
        assert branch().item() == 2
    assert "cond" in called
    called.clear()
    with torch.compiler.set_stance("force_eager"):
        branch()
    assert called == []


NESTED = {"a": [torch.ones(1), 2], "b": (torch.zeros(2),)}


def test_leaves_of() -> None:
    assert [type(leaf) for leaf in private.leaves_of(NESTED)] == [torch.Tensor, int, torch.Tensor]
    assert len(private.tensors_among(NESTED)) == 2


def test_flatten() -> None:
    leaves, structure = private.flatten((1, {"x": 2}))
    assert leaves == [1, 2]
    assert private.unflatten([3, 4], structure) == (3, {"x": 4})


test_unflatten = test_flatten


def test_map_leaves() -> None:
    assert private.map_leaves(lambda leaf: leaf + 1, {"a": [1], "b": (2,)}) == {"a": [2], "b": (3,)}


def test_leaves_with_keys() -> None:
    assert [way for way, _ in private.leaves_with_keys(NESTED)] == [("a", 0), ("a", 1), ("b", 0)]


def test_map_leaves_with_keys() -> None:
    assert private.map_leaves_with_keys(lambda way, leaf: (*way, leaf), {"a": [1]}) == {"a": [("a", 0, 1)]}


def test_registered_children() -> None:
    assert private.registered_children({"a": 1, "b": 2}) == [1, 2]
    assert private.registered_children(object()) is None
