"""Private parts of torch, each behind one function: tensors, modules, operators and nested values.

`private_fx` has those of FX and the dynamo exporter, `private_jit` those of TorchScript and its exporter. Every part
was seen to work on the releases of `SEEN_ON`, and has a test that fails by name when torch changes it. A part is looked
up when it is used, so that a release without it fails there alone.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, TypeGuard

import torch

from modelexport.errors import UnsupportedLibraryError

# The releases that every part here was seen to work on.
SEEN_ON = {"torch": ("2.9.1", "2.11.0", "2.13.0", "2.15.0"), "transformers": ("5.17.0", "5.22.2")}


def find_part(path: str) -> Any:
    """A part of a library by its dotted path.

    Raises:
        UnsupportedLibraryError: The installed release has no such part.
    """
    library, *names = path.split(".")
    try:
        found: Any = importlib.import_module(library)
        way = library
        for name in names:
            way = f"{way}.{name}"
            if isinstance(found, ModuleType) and not hasattr(found, name):
                importlib.import_module(way)
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise missing_part(path) from error
    return found


@functools.cache
def fixed_part(path: str) -> Any:
    """The same for a part that nothing replaces while the process runs: looked up once."""
    return find_part(path)


def find_attribute(holder: Any, name: str) -> Any:
    """An attribute of an object of a library.

    Raises:
        UnsupportedLibraryError: Objects of its class have none.
    """
    try:
        return getattr(holder, name)
    except AttributeError as error:
        kind = type(holder)
        owner = holder.__name__ if isinstance(holder, ModuleType) else f"{kind.__module__}.{kind.__name__}"
        raise missing_part(f"{owner}.{name}") from error


def missing_part(path: str) -> UnsupportedLibraryError:
    """The error for a part that the installed release of its library does not have."""
    library = path.partition(".")[0]
    try:
        version = importlib.import_module(library).__version__
    except ImportError:
        version = "(not installed)"
    return UnsupportedLibraryError(path, version, SEEN_ON.get(library, ()))


@contextlib.contextmanager
def called_through(owner: str, name: str, around: Callable[..., Any]) -> Iterator[None]:
    """For the time of the context, a function or method is called through `around`, which gets the original first.

    Args:
        owner: The dotted path of the module or class that has it.
        name: Its name there.
        around: Called with the original and its arguments.
    """
    holder, original = find_part(owner), find_part(f"{owner}.{name}")
    own = vars(holder).get(name, original)
    setattr(holder, name, lambda *args, **kwargs: around(original, *args, **kwargs))
    try:
        yield
    finally:
        setattr(holder, name, own)


# --- tensors ----------------------------------------------------------------------------------------------------


def memory_of(tensor: torch.Tensor) -> int | None:
    """The identity of the memory that a tensor lies in; None for a wrapper of tensors or an unusual layout.

    Needed to know views of one memory: `data_ptr` is 0 for every empty tensor and the same for memory that is reused.
    """
    try:
        storage = tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None
    return int(find_attribute(storage, "_cdata"))


def hold_memory(tensor: torch.Tensor) -> Any:
    """Something that keeps the memory's identity from being used again; None where `memory_of` is None."""
    try:
        return fixed_part("torch.multiprocessing.reductions.StorageWeakRef")(tensor.untyped_storage())
    except (RuntimeError, NotImplementedError):
        return None


def version_of(tensor: torch.Tensor) -> int:
    """How often something has written into the tensor or into a view of its memory.

    Raises:
        RuntimeError: torch does not count it: the tensor was made in inference mode.
    """
    return int(find_attribute(tensor, "_version"))


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that this one is a view of; None for one that is none."""
    base: torch.Tensor | None = find_attribute(tensor, "_base")
    return base


def is_functorch_wrapped(tensor: torch.Tensor) -> bool:
    """Whether the tensor stands for others inside a function transform, so that it has no values of its own.

    Control-flow operators call their functions with such tensors to learn the shapes of the results.
    """
    return bool(fixed_part("torch._C._functorch.is_functorch_wrapped_tensor")(tensor))


# --- modules ----------------------------------------------------------------------------------------------------


def has_forward_hooks(module: torch.nn.Module) -> bool:
    """Whether calling the module runs more than its `forward`. Public code can only add hooks."""
    shared = fixed_part("torch.nn.modules.module")
    return any(find_attribute(module, name) for name in ("_forward_pre_hooks", "_forward_hooks")) or any(
        find_attribute(shared, name) for name in ("_global_forward_pre_hooks", "_global_forward_hooks")
    )


def children_of(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The children by name, one that has two names under both: `named_children` gives it once."""
    return {name: child for name, child in find_attribute(module, "_modules").items() if child is not None}


# --- operators --------------------------------------------------------------------------------------------------


def is_higher_order_operator(func: object) -> bool:
    """Whether an operator is given functions: `cond`, `while_loop`, `scan` and the like."""
    return isinstance(func, fixed_part("torch._ops.HigherOrderOperator"))


def is_operator_overload(target: object) -> TypeGuard[torch._ops.OpOverload]:
    """Whether the target of an FX node is an operator with a schema."""
    return isinstance(target, fixed_part("torch._ops.OpOverload"))


def schema_of(operator: Any) -> Any:
    """The schema of an operator: its arguments, and which of them it writes to; None for one that has none."""
    return getattr(operator, "_schema", None)


def is_control_flow(value: object) -> bool:
    """Whether a value is a control-flow operator, or one of torch's functions that call one: `torch.cond`, `scan`."""
    package = fixed_part("torch._higher_order_ops").__name__
    if not isinstance(value, FunctionType):
        return is_higher_order_operator(value)
    # `torch.cond` says that its module is `torch`: its globals say where it is defined.
    defined_in: str = inspect.unwrap(value).__globals__.get("__name__", "")
    return defined_in.startswith(f"{package}.")


def dispatch_mode(
    handle: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any],
) -> contextlib.AbstractContextManager[Any]:
    """Within it every operator, control flow included, goes to `handle`, which gets its arguments.

    May be entered again inside itself. torch has no public way to see operators; the class is a subclass made here, so
    that nothing is looked up when this module is imported.
    """
    base: Any = fixed_part("torch.utils._python_dispatch.TorchDispatchMode")

    class Mode(base):  # type: ignore[misc]  # a base that is looked up is Any
        # Otherwise torch refuses control-flow operators in a mode.
        supports_higher_order_operators = True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return handle(func, args, kwargs or {})

    mode: contextlib.AbstractContextManager[Any] = Mode()
    return mode


def higher_order_calls_through(around: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    """For the time of the context, control-flow operators are called through `around`, which gets the original first.

    Needed to know which module calls come from a loop or branch without a dispatch mode, which would see them all.
    """
    return called_through("torch._ops.HigherOrderOperator", "__call__", around)


# --- nested values ----------------------------------------------------------------------------------------------

# torch's pytree in Python is private; the public `torch.utils.pytree` came after the oldest supported release.


def leaves_of(value: object) -> list[Any]:
    """Everything inside of tuples, lists, dicts and registered classes that is none of these."""
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
    """The value with each leaf replaced by what `change` returns for it."""
    return fixed_part("torch.utils._pytree.tree_map")(change, value)


def leaves_with_keys(value: object) -> list[tuple[tuple[object, ...], Any]]:
    """The leaves of a value, each behind the keys, indices and attribute names that lead to it."""
    found, _ = fixed_part("torch.utils._pytree.tree_flatten_with_path")(value)
    return [(tuple(map(_unwrapped, path)), leaf) for path, leaf in found]


def map_leaves_with_keys(change: Callable[[tuple[object, ...], Any], Any], value: object) -> Any:
    """The value with each leaf replaced by what `change` returns for the way to it and for it."""
    return fixed_part("torch.utils._pytree.tree_map_with_path")(
        lambda path, leaf: change(tuple(map(_unwrapped, path)), leaf), value
    )


def _unwrapped(key: Any) -> object:
    for kind, field in (("MappingKey", "key"), ("SequenceKey", "idx"), ("GetAttrKey", "name")):
        if isinstance(key, fixed_part(f"torch.utils._pytree.{kind}")):
            return getattr(key, field)
    return key


def registered_children(value: object) -> list[Any] | None:
    """What a value of a class that is registered with torch holds; None where its class is not."""
    registered = fixed_part("torch.utils._pytree.SUPPORTED_NODES").get(type(value))
    return list(registered.flatten_fn(value)[0]) if registered is not None else None
