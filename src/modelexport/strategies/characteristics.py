"""Characteristics of a model before its export, for people to read. No architecture is known by name."""

from __future__ import annotations

import dataclasses
import dis
import inspect
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from modelexport.capture import is_transformers_model
from modelexport.torch_support.private import is_control_flow


@dataclasses.dataclass(frozen=True)
class ModelCharacteristics:
    """Counts and properties of a model.

    Attributes:
        module_count: The number of modules, the root included.
        parameter_count: The number of elements of its initialized parameters.
        depth: The number of nested modules on the longest path, the root included.
        has_control_flow: Whether a `forward` calls a control-flow operator of torch, such as `torch.cond`.
        has_dynamic_shapes: Whether dynamic axes were requested.
        is_huggingface: Whether its class is a transformers model class.
        is_scripted: Whether it is compiled TorchScript.
        model_type: The name of its class; for information only.
        framework_hints: The packages that define its modules' classes, most modules first; for information only.
        estimated_complexity: ``low``, ``medium`` or ``high``, from the counts.
    """

    module_count: int
    parameter_count: int
    depth: int
    has_control_flow: bool
    has_dynamic_shapes: bool
    is_huggingface: bool
    is_scripted: bool
    model_type: str
    framework_hints: tuple[str, ...]
    estimated_complexity: str


def characterize(model: torch.nn.Module, *, dynamic_shapes: bool = False) -> ModelCharacteristics:
    """Characterize a model without running it."""
    modules = dict(model.named_modules())
    packages: dict[str, int] = {}
    for module in modules.values():
        package = type(module).__module__.partition(".")[0]
        packages[package] = packages.get(package, 0) + 1
    count = len(modules)
    return ModelCharacteristics(
        module_count=count,
        parameter_count=sum(
            p.numel() for p in model.parameters() if not isinstance(p, torch.nn.UninitializedParameter)
        ),
        depth=1 + max(path.count(".") + 1 if path else 0 for path in modules),
        has_control_flow=any(_uses_control_flow(module) for module in modules.values()),
        has_dynamic_shapes=dynamic_shapes,
        is_huggingface=is_transformers_model(model),
        is_scripted=isinstance(model, torch.jit.ScriptModule),
        model_type=type(model).__name__,
        framework_hints=tuple(sorted(packages, key=lambda name: (-packages[name], name))),
        estimated_complexity="low" if count < 50 else "medium" if count < 500 else "high",
    )


def _uses_control_flow(module: torch.nn.Module) -> bool:
    forward = getattr(type(module), "forward", None)
    function = inspect.unwrap(forward) if forward is not None else None
    if not isinstance(function, FunctionType):
        return False
    names = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    return any(is_control_flow(value) for code in _nested_codes(function.__code__) for value in _loaded(code, names))


def _loaded(code: CodeType, names: Mapping[str, Any]) -> Iterator[Any]:
    """The objects that the code loads by name (`cond`) or as attributes of modules (`torch.cond`).

    A name alone says little: `map` is also a builtin, and `scan` may be a method of the model.
    """
    imported: Any = None
    loaded: Any = None
    for instruction in dis.get_instructions(code):
        match instruction.opname:
            case "IMPORT_NAME":
                imported = sys.modules.get(instruction.argval)
            case "IMPORT_FROM":
                yield _attribute(imported, instruction.argval)
            case "LOAD_GLOBAL" | "LOAD_DEREF":
                loaded = names.get(instruction.argval)
                yield loaded
            case "LOAD_ATTR" | "LOAD_METHOD" if isinstance(loaded, ModuleType):
                loaded = _attribute(loaded, instruction.argval)
                yield loaded
            case _:
                loaded = None


def _attribute(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name, None)
    except Exception:  # noqa: BLE001  a lazy module imports what is not installed or broken
        return None


def _nested_codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested_codes(constant)
