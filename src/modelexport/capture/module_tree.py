"""Read the module tree of a model, from attributes that every `nn.Module` has."""

from __future__ import annotations

import inspect

import torch

from modelexport.hierarchy import ForwardArgument, ModuleInfo, ModuleTree, TensorInfo
from modelexport.torch_support.private import children_of


def read_module_tree(model: torch.nn.Module) -> ModuleTree:
    """Return the modules of `model`; a module with several names has the first as its path, the others as aliases."""
    paths: dict[int, str] = {}
    modules: dict[str, torch.nn.Module] = {}
    aliases: dict[str, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        path = paths.setdefault(id(module), name)
        if path == name:
            modules[path] = module
        else:
            aliases.setdefault(path, []).append(name)
    first_names: dict[int, str] = {}
    signatures: dict[object, tuple[ForwardArgument, ...]] = {}
    return ModuleTree(
        {
            path: _read_module(path, module, aliases.get(path, []), first_names, signatures)
            for path, module in modules.items()
        }
    )


def _read_module(
    path: str,
    module: torch.nn.Module,
    aliases: list[str],
    first_names: dict[int, str],
    signatures: dict[object, tuple[ForwardArgument, ...]],
) -> ModuleInfo:
    # Modules of one class share their forward, which is inspected once.
    function = getattr(module.forward, "__func__", module.forward)
    if function not in signatures:
        signatures[function] = tuple(read_forward_arguments(module))
    tied: dict[str, str] = {}
    for name, parameter in module.named_parameters(recurse=False):
        full = f"{path}.{name}" if path else name
        first = first_names.setdefault(id(parameter), full)
        if first != full:
            tied[name] = first
    return ModuleInfo(
        path=path,
        class_name=type(module).__name__,
        qualified_class=qualified_name(type(module)),
        aliases=tuple(aliases),
        forward_arguments=signatures[function],
        parameters={name: _read_tensor(p) for name, p in module.named_parameters(recurse=False)},
        buffers={name: _read_tensor(b) for name, b in module.named_buffers(recurse=False)},
        children={name: type(child).__name__ for name, child in children_of(module).items()},
        tied_parameters=tied,
    )


def qualified_name(cls: type) -> str:
    """Return the class's name with the Python module that defines it."""
    return f"{cls.__module__}.{cls.__qualname__}"


def read_forward_arguments(module: torch.nn.Module) -> list[ForwardArgument]:
    """Return the arguments of the module's `forward`; none where it has no signature (scripted or built-in)."""
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):
        return []
    return [
        ForwardArgument(
            name=parameter.name,
            kind=parameter.kind.name.lower(),
            required=parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD),
        )
        for parameter in signature.parameters.values()
    ]


def _read_tensor(tensor: torch.Tensor) -> TensorInfo:
    try:
        shape = tuple(int(size) for size in tensor.shape)
    except RuntimeError:
        # A parameter of a lazy module has no shape before the first forward pass.
        shape = ()
    return TensorInfo(shape=shape, dtype=str(tensor.dtype).removeprefix("torch."))
