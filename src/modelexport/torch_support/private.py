"""Private APIs of torch, each wrapped in one function: tensors, modules, operators and nested values.

`private_export`, `private_fx` and `private_jit` wrap those of torch's exporters; `private_part` says what a part is.
Each part has a test in `tests/unit/torch_support` that fails by name when a release changes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, TypeGuard

import torch

from modelexport.torch_support.private_part import Part

# --- tensors ----------------------------------------------------------------------------------------------------

_STORAGE_ID = Part("torch.UntypedStorage._cdata", "recognizes views of one storage")
_STORAGE_REFERENCE = Part(
    "torch.multiprocessing.reductions.StorageWeakRef", "keeps torch from reusing the id of a storage"
)
_VERSION = Part("torch.Tensor._version", "finds tensors that something wrote into")
_BASE = Part("torch.Tensor._base", "finds the tensor that a view was taken of")
_IS_FUNCTORCH = Part(
    "torch._C._functorch.is_functorch_wrapped_tensor", "tells a run of a control-flow function from shape inference"
)


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage of a tensor; None for a wrapper of other tensors or a layout without storage (sparse)."""
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None


def storage_id(tensor: torch.Tensor) -> int | None:
    """The id of a tensor's storage; None for a tensor without one.

    `data_ptr` would not do: it is 0 for every empty tensor, and repeats when memory is reused.
    """
    storage = storage_of(tensor)
    return _STORAGE_ID.check(_STORAGE_ID.of(storage), int) if storage is not None else None


def storage_reference(tensor: torch.Tensor) -> Any:
    """A reference that keeps torch from reusing the storage's id; None where `storage_id` is None."""
    storage = storage_of(tensor)
    return _STORAGE_REFERENCE.call(object, storage) if storage is not None else None


def version_of(tensor: torch.Tensor) -> int:
    """The number of writes to the tensor or to a view of its storage.

    Raises:
        RuntimeError: torch does not count writes to tensors created in inference mode.
    """
    return _VERSION.check(_VERSION.of(tensor), int)


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that this one is a view of; None where it is not a view."""
    base = _BASE.of(tensor)
    return None if base is None else _BASE.check(base, torch.Tensor)


def is_functorch_wrapped(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a wrapper inside a function transform, without values of its own.

    Control-flow operators call their functions with such tensors to infer the shapes of the outputs.
    """
    return _IS_FUNCTORCH.call(bool, tensor)


# --- modules ----------------------------------------------------------------------------------------------------


_CHILDREN = Part("torch.nn.Module._modules", "finds a child with two names under both: `named_children` yields it once")
_PRE_HOOKS = Part("torch.nn.Module._forward_pre_hooks", "finds modules with hooks: the public API can only add hooks")
_HOOKS = Part("torch.nn.Module._forward_hooks", "finds modules with hooks: the public API can only add hooks")
_GLOBAL_PRE_HOOKS = Part("torch.nn.modules.module._global_forward_pre_hooks", "finds hooks on all modules")
_GLOBAL_HOOKS = Part("torch.nn.modules.module._global_forward_hooks", "finds hooks on all modules")


def has_forward_hooks(module: torch.nn.Module) -> bool:
    """Whether calling the module runs more than its `forward`."""
    return any(part.check(part.of(module), dict) for part in (_PRE_HOOKS, _HOOKS)) or any(
        part.check(part.find(), dict) for part in (_GLOBAL_PRE_HOOKS, _GLOBAL_HOOKS)
    )


def global_hook_tables() -> list[dict[Any, Any]]:
    """The tables of hooks on all modules, of every kind: torch may leave one of its own hooks registered."""
    tables = vars(torch.nn.modules.module).items()
    return [table for name, table in tables if name.startswith("_global_") and isinstance(table, dict)]


def children_of(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The children by name, a child with two names under both."""
    children = _CHILDREN.of(module)
    if not hasattr(children, "items"):  # a compiled module has a mapping of its own
        raise _CHILDREN.changed(f"{type(children).__name__} instead of a mapping")
    return {name: child for name, child in children.items() if child is not None}


# --- operators --------------------------------------------------------------------------------------------------

_HIGHER_ORDER = Part("torch._ops.HigherOrderOperator", "recognizes control-flow operators")
_HIGHER_ORDER_CALL = Part(
    "torch._ops.HigherOrderOperator.__call__", "finds the module calls of a loop or branch without a dispatch mode"
)
_OVERLOAD = Part("torch._ops.OpOverload", "recognizes operators with a schema")
_SCHEMA = Part("torch._ops.OpOverload._schema", "finds the arguments that an operator writes to")
_CONTROL_FLOW = Part("torch._higher_order_ops", "recognizes functions such as `torch.cond` in a model's code")
_DISPATCH_MODE = Part("torch.utils._python_dispatch.TorchDispatchMode", "sees every operator that runs")


def is_higher_order_operator(func: object) -> bool:
    """Whether an operator takes functions as arguments: `cond`, `while_loop`, `scan`."""
    return _HIGHER_ORDER.is_instance(func, torch.ops.higher_order.cond)


def is_operator_overload(target: object) -> TypeGuard[torch._ops.OpOverload]:
    """Whether the target of an FX node is an operator with a schema."""
    return _OVERLOAD.is_instance(target, torch.ops.aten.add.Tensor)


def schema_of(operator: Any) -> Any:
    """The schema of an operator: its arguments, and which of them it writes to; None where it has no schema."""
    return _SCHEMA.check(_SCHEMA.of(operator), torch.FunctionSchema) if is_operator_overload(operator) else None


def written_arguments(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors among an operator's arguments that it writes to, as far as its schema declares it."""
    schema = schema_of(operator)
    if schema is None or not schema.is_mutable:
        return []
    given = {**dict(zip((argument.name for argument in schema.arguments), args, strict=False)), **kwargs}
    written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return tensors_among([given.get(name) for name in written])


def is_control_flow(value: object) -> bool:
    """Whether a value is a control-flow operator, or one of torch's functions that call one: `torch.cond`, `scan`."""
    package = _CONTROL_FLOW.check(_CONTROL_FLOW.fixed, ModuleType).__name__
    if not isinstance(value, FunctionType):
        return is_higher_order_operator(value)
    # `torch.cond` says that its module is `torch`: its globals say where it is defined.
    defined_in: str = value.__globals__.get("__name__", "")
    return defined_in.startswith(f"{package}.")


def dispatch_mode(
    handle: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any],
) -> contextlib.AbstractContextManager[Any]:
    """Within the context every operator, control flow included, is passed to `handle` with its arguments.

    The context is reentrant. The class is defined here so that nothing is looked up when this module is imported.
    """
    base: Any = _DISPATCH_MODE.check(_DISPATCH_MODE.fixed, type)
    if not hasattr(base, "__enter__"):
        raise _DISPATCH_MODE.changed("it is not a context manager")

    class Mode(base):  # type: ignore[misc]  # the base is Any
        # Otherwise torch raises for control-flow operators in a mode.
        supports_higher_order_operators = True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return handle(func, args, kwargs or {})

    mode: contextlib.AbstractContextManager[Any] = Mode()
    return mode


def higher_order_calls_through(around: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    """Within the context, control-flow operators are called through `around`; its first argument is the original."""
    return _HIGHER_ORDER_CALL.called_through(around)


# --- nested values ----------------------------------------------------------------------------------------------

# The public `torch.utils.pytree` is newer than the oldest supported release.
_LEAVES = Part("torch.utils._pytree.tree_leaves", "finds the tensors inside arguments and results")
_FLATTEN = Part("torch.utils._pytree.tree_flatten", "turns a model into a function from tensors to tensors")
_UNFLATTEN = Part("torch.utils._pytree.tree_unflatten", "turns a model into a function from tensors to tensors")
_MAP = Part("torch.utils._pytree.tree_map", "copies the tensors inside example inputs")
_FLATTEN_WITH_PATH = Part("torch.utils._pytree.tree_flatten_with_path", "names the tensors inside example inputs")
_MAP_WITH_PATH = Part("torch.utils._pytree.tree_map_with_path", "names the tensors inside example inputs")
_NODES = Part("torch.utils._pytree.SUPPORTED_NODES", "finds the tensors inside objects of registered classes")


def leaves_of(value: object) -> list[Any]:
    """The leaves of a pytree: everything inside tuples, lists, dicts and registered classes."""
    return _LEAVES.call(list, value)


def tensors_among(value: object) -> list[torch.Tensor]:
    """The tensors among the leaves of a value."""
    return [leaf for leaf in leaves_of(value) if isinstance(leaf, torch.Tensor)]


def flatten(value: object) -> tuple[list[Any], Any]:
    """The leaves of a value, and its structure for `unflatten`."""
    leaves, structure = _pair(_FLATTEN, value)
    return leaves, structure


def _pair(flatten_with: Part, value: object) -> tuple[list[Any], Any]:
    found = flatten_with.call(tuple, value)
    if len(found) != 2 or not isinstance(found[0], list):
        raise flatten_with.changed("it returns no list of leaves with a structure")
    return found


def unflatten(leaves: list[Any], structure: Any) -> Any:
    """A value of that structure with these leaves."""
    kind = getattr(structure, "type", None)
    return _UNFLATTEN.call(kind if isinstance(kind, type) else object, leaves, structure)


def map_leaves(change: Callable[[Any], Any], value: object) -> Any:
    """The value with each leaf replaced by the result of `change`."""
    return _MAP.call(_container(value), change, value)


def leaves_with_keys(value: object) -> list[tuple[tuple[object, ...], Any]]:
    """The leaves of a value, each with the keys, indices and attribute names on its path."""
    found, _ = _pair(_FLATTEN_WITH_PATH, value)
    return [(tuple(map(_unwrapped, path)), leaf) for path, leaf in found]


def map_leaves_with_keys(change: Callable[[tuple[object, ...], Any], Any], value: object) -> Any:
    """The value with each leaf replaced by the result of `change` for its keys and the leaf."""
    return _MAP_WITH_PATH.call(_container(value), lambda path, leaf: change(tuple(map(_unwrapped, path)), leaf), value)


def _container(value: object) -> type:
    """The type that a value with other leaves has."""
    return type(value) if isinstance(value, tuple | list | dict) else object


def _unwrapped(key: Any) -> object:
    # The fields of torch's keys of a mapping, a sequence and an attribute; other classes may have keys of their own.
    return next((getattr(key, field) for field in ("key", "idx", "name") if hasattr(key, field)), key)


def registered_children(value: object) -> list[Any] | None:
    """The children of a value whose class is registered as a pytree node; None for other classes."""
    registered = _NODES.check(_NODES.fixed, dict).get(type(value))
    return list(registered.flatten_fn(value)[0]) if registered is not None else None
