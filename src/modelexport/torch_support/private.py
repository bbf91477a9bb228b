"""Private APIs of torch, each wrapped in one function: tensors, modules, operators and nested values.

`private_fx` wraps those of FX and the dynamo exporter, `private_jit` those of TorchScript and its exporter. Every API
is tested on the releases in `SEEN_ON`, and has a test that fails by name when torch changes it. It is looked up when it
is used, so that only this use fails on a release without it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, TypeGuard

import torch

from modelexport.errors import UnsupportedLibraryError

# The releases on which every private API here was tested.
SEEN_ON = {"torch": ("2.9.1", "2.11.0", "2.13.0", "2.15.0"), "transformers": ("5.17.0", "5.22.2")}


def find_part(path: str) -> Any:
    """Look up a private API of a library by its dotted path.

    Raises:
        UnsupportedLibraryError: The installed release does not have it.
    """
    library, *names = path.split(".")
    try:
        found: Any = importlib.import_module(library)
        current = library
        for name in names:
            current = f"{current}.{name}"
            if isinstance(found, ModuleType) and not hasattr(found, name):
                importlib.import_module(current)
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise missing_part(path) from error
    return found


@functools.cache
def fixed_part(path: str) -> Any:
    """Look up an API that nothing patches while the process runs: cached."""
    return find_part(path)


def find_attribute(instance: Any, name: str) -> Any:
    """A private attribute of a library's object.

    Raises:
        UnsupportedLibraryError: The object does not have it.
    """
    try:
        return getattr(instance, name)
    except AttributeError as error:
        kind = type(instance)
        owner = instance.__name__ if isinstance(instance, ModuleType) else f"{kind.__module__}.{kind.__name__}"
        raise missing_part(f"{owner}.{name}") from error


def missing_part(path: str) -> UnsupportedLibraryError:
    """The error for an API that the installed release of its library does not have."""
    library = path.partition(".")[0]
    try:
        version = importlib.import_module(library).__version__
    except ImportError:
        version = "(not installed)"
    return UnsupportedLibraryError(path, version, SEEN_ON.get(library, ()))


@contextlib.contextmanager
def called_through(owner: str, name: str, around: Callable[..., Any]) -> Iterator[None]:
    """Replace a function or method within the context: this thread calls `around` with the original and its arguments.

    Other threads call the original.

    Args:
        owner: The dotted path of the module or class that has it.
        name: Its name there.
        around: Called with the original and its arguments.
    """
    holder, original = find_part(owner), find_part(f"{owner}.{name}")
    own = vars(holder).get(name, original)
    thread = threading.get_ident()

    def replacement(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return original(*args, **kwargs)
        return around(original, *args, **kwargs)

    setattr(holder, name, replacement)
    try:
        yield
    finally:
        setattr(holder, name, own)


# --- tensors ----------------------------------------------------------------------------------------------------


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage of a tensor; None for a wrapper of other tensors or a layout without storage (sparse)."""
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None


def storage_id(tensor: torch.Tensor) -> int | None:
    """The id of a tensor's storage; None for a tensor without one.

    Needed to recognize views of one storage: `data_ptr` is 0 for every empty tensor, and repeats when memory is reused.
    """
    storage = storage_of(tensor)
    return int(find_attribute(storage, "_cdata")) if storage is not None else None


def storage_reference(tensor: torch.Tensor) -> Any:
    """A reference that keeps torch from reusing the storage's id; None where `storage_id` is None."""
    storage = storage_of(tensor)
    return fixed_part("torch.multiprocessing.reductions.StorageWeakRef")(storage) if storage is not None else None


def version_of(tensor: torch.Tensor) -> int:
    """The number of writes to the tensor or to a view of its storage.

    Raises:
        RuntimeError: torch does not count writes to tensors created in inference mode.
    """
    return int(find_attribute(tensor, "_version"))


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that this one is a view of; None where it is not a view."""
    base: torch.Tensor | None = find_attribute(tensor, "_base")
    return base


def is_functorch_wrapped(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a wrapper inside a function transform, without values of its own.

    Control-flow operators call their functions with such tensors to infer the shapes of the outputs.
    """
    return bool(fixed_part("torch._C._functorch.is_functorch_wrapped_tensor")(tensor))


# --- modules ----------------------------------------------------------------------------------------------------


def has_forward_hooks(module: torch.nn.Module) -> bool:
    """Whether calling the module runs more than its `forward`. The public API can only add hooks."""
    shared = fixed_part("torch.nn.modules.module")
    return any(find_attribute(module, name) for name in ("_forward_pre_hooks", "_forward_hooks")) or any(
        find_attribute(shared, name) for name in ("_global_forward_pre_hooks", "_global_forward_hooks")
    )


def children_of(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The children by name, a child with two names under both: `named_children` yields it once."""
    return {name: child for name, child in find_attribute(module, "_modules").items() if child is not None}


# --- operators --------------------------------------------------------------------------------------------------


def is_higher_order_operator(func: object) -> bool:
    """Whether an operator takes functions as arguments: `cond`, `while_loop`, `scan`."""
    return isinstance(func, fixed_part("torch._ops.HigherOrderOperator"))


def is_operator_overload(target: object) -> TypeGuard[torch._ops.OpOverload]:
    """Whether the target of an FX node is an operator with a schema."""
    return isinstance(target, fixed_part("torch._ops.OpOverload"))


def schema_of(operator: Any) -> Any:
    """The schema of an operator: its arguments, and which of them it writes to; None where it has no schema."""
    return getattr(operator, "_schema", None)


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
    package = fixed_part("torch._higher_order_ops").__name__
    if not isinstance(value, FunctionType):
        return is_higher_order_operator(value)
    # `torch.cond` says that its module is `torch`: its globals say where it is defined.
    defined_in: str = value.__globals__.get("__name__", "")
    return defined_in.startswith(f"{package}.")


def dispatch_mode(
    handle: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any],
) -> contextlib.AbstractContextManager[Any]:
    """Within the context every operator, control flow included, is passed to `handle` with its arguments.

    The context is reentrant. torch has no public API to observe operators. The class is defined here so that nothing is
    looked up when this module is imported.
    """
    base: Any = fixed_part("torch.utils._python_dispatch.TorchDispatchMode")

    class Mode(base):  # type: ignore[misc]  # the base is Any
        # Otherwise torch raises for control-flow operators in a mode.
        supports_higher_order_operators = True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return handle(func, args, kwargs or {})

    mode: contextlib.AbstractContextManager[Any] = Mode()
    return mode


def higher_order_calls_through(around: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    """Within the context, control-flow operators are called through `around`; its first argument is the original.

    Needed to find the module calls of a loop or branch without a dispatch mode, which would observe all operators.
    """
    return called_through("torch._ops.HigherOrderOperator", "__call__", around)


# --- nested values ----------------------------------------------------------------------------------------------

# The pytree module of torch is private; the public `torch.utils.pytree` is newer than the oldest supported release.


def leaves_of(value: object) -> list[Any]:
    """The leaves of a pytree: everything inside tuples, lists, dicts and registered classes."""
    found: list[Any] = fixed_part("torch.utils._pytree.tree_leaves")(value)
    return found


def tensors_among(value: object) -> list[torch.Tensor]:
    """The tensors among the leaves of a value."""
    return [leaf for leaf in leaves_of(value) if isinstance(leaf, torch.Tensor)]


def flatten(value: object) -> tuple[list[Any], Any]:
    """The leaves of a value, and its structure for `unflatten`."""
    leaves, structure = fixed_part("torch.utils._pytree.tree_flatten")(value)
    return leaves, structure


def unflatten(leaves: list[Any], structure: Any) -> Any:
    """A value of that structure with these leaves."""
    return fixed_part("torch.utils._pytree.tree_unflatten")(leaves, structure)


def map_leaves(change: Callable[[Any], Any], value: object) -> Any:
    """The value with each leaf replaced by the result of `change`."""
    return fixed_part("torch.utils._pytree.tree_map")(change, value)


def leaves_with_keys(value: object) -> list[tuple[tuple[object, ...], Any]]:
    """The leaves of a value, each with the keys, indices and attribute names on its path."""
    found, _ = fixed_part("torch.utils._pytree.tree_flatten_with_path")(value)
    return [(tuple(map(_unwrapped, path)), leaf) for path, leaf in found]


def map_leaves_with_keys(change: Callable[[tuple[object, ...], Any], Any], value: object) -> Any:
    """The value with each leaf replaced by the result of `change` for its keys and the leaf."""
    return fixed_part("torch.utils._pytree.tree_map_with_path")(
        lambda path, leaf: change(tuple(map(_unwrapped, path)), leaf), value
    )


def _unwrapped(key: Any) -> object:
    for kind, field in (("MappingKey", "key"), ("SequenceKey", "idx"), ("GetAttrKey", "name")):
        if isinstance(key, fixed_part(f"torch.utils._pytree.{kind}")):
            return getattr(key, field)
    return key


def registered_children(value: object) -> list[Any] | None:
    """The children of a value whose class is registered as a pytree node; None for other classes."""
    registered = fixed_part("torch.utils._pytree.SUPPORTED_NODES").get(type(value))
    return list(registered.flatten_fn(value)[0]) if registered is not None else None
