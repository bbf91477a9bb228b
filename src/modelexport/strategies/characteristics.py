"""What can be said of a model before it is exported. It informs people; it names no architecture."""

from __future__ import annotations

import builtins
import dataclasses
import dis
from collections.abc import Iterator
from types import CodeType

import torch

from modelexport.capture import is_transformers_model
from modelexport.torch_support.private import control_flow_names


@dataclasses.dataclass(frozen=True)
class ModelCharacteristics:
    """A model at a glance.

    Attributes:
        module_count: How many modules it has, the root included.
        parameter_count: How many numbers its parameters hold, as far as they are initialized.
        depth: How many modules lie on the longest way down, the root included.
        has_control_flow: Whether a `forward` uses torch's own control flow (`torch.cond` and its like).
        has_dynamic_shapes: Whether dynamic axes were asked for.
        is_huggingface: Whether it is of transformers' classes.
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
    """Look a model over without running it."""
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
    code = getattr(forward, "__code__", None)
    if code is None:
        return False
    operators = control_flow_names()
    # Names that are functions of Python there: `map`.
    of_python = vars(builtins).keys() - getattr(forward, "__globals__", {}).keys()
    return any(
        operation.argval in operators and not (operation.opname == "LOAD_GLOBAL" and operation.argval in of_python)
        for part in _codes(code)
        if not operators.isdisjoint(part.co_names)
        for operation in dis.get_instructions(part)
        if operation.opname.startswith("LOAD_")
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
