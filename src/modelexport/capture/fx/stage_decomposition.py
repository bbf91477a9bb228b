"""The stages of text generation: the forward passes that `generate` runs, each to be exported on its own.

transformers' exporters decompose `generate` into the forward pass over the prompt (prefill) and a later one with the
cache (decode), or into the parts of a multimodal model. They leave out the modules that `generate` calls directly, such
as an encoder or a projector; forward hooks find those.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from modelexport.capture import can_export, in_one_line, root_cause, varied_values
from modelexport.errors import InputError, UnsupportedLibraryError
from modelexport.hierarchy import ROOT_PATH
from modelexport.torch_support import CallWatch, RunningCall, tensors_in
from modelexport.torch_support.transformers_private import decompose_for_generation

# An argument that only `generate` needs; transformers' exporters remove it as well.
_GENERATE_ONLY = "logits_to_keep"
_UNSAFE = re.compile(r"[^\w-]+")


@dataclasses.dataclass(frozen=True)
class Stage:
    """A forward pass of text generation that is exported on its own.

    Attributes:
        name: transformers' name for it, or the module's own name.
        path: The path of the module in the whole model; the root's is empty.
        module: The module.
        inputs: The inputs that `generate` passed, by the names of its forward arguments, and those that it left out
            for their values: with an attention mask of ones it passes none.
        other_inputs: Inputs of the same names with values for which `generate` leaves none out; empty where it did not.
    """

    name: str
    path: str
    module: torch.nn.Module
    inputs: dict[str, Any]
    other_inputs: dict[str, Any] = dataclasses.field(default_factory=dict)


def decompose(model: torch.nn.Module, inputs: Mapping[str, Any]) -> list[Stage]:
    """Return the stages of a model in evaluation mode, in the order in which `generate` with these arguments runs them.

    Raises:
        InputError: The model has no stages, or cannot generate from these inputs.
    """
    stages = _recorded(model, inputs)
    for name, given in inputs.items():
        varied = varied_values(given) if isinstance(given, torch.Tensor) else None
        if varied is not None:
            # An InputError says that `generate` does not accept these values.
            with contextlib.suppress(InputError):
                others = {stage.name: stage for stage in _recorded(model, {**inputs, name: varied})}
                stages = [_with_left_out(stage, others.get(stage.name, stage)) for stage in stages]
    return stages


def _with_left_out(stage: Stage, other: Stage) -> Stage:
    """Return the stage with the inputs that `generate` passed with other values of its arguments only."""
    left_out = {
        # The last element is not one that was varied.
        name: torch.full_like(value, value.flatten()[-1].item())
        for name, value in other.inputs.items()
        if isinstance(value, torch.Tensor) and value.numel() and stage.inputs.get(name) is None
    }
    if not left_out:
        return stage
    inputs = _tensors_first({**other.inputs, **stage.inputs, **left_out})
    return dataclasses.replace(stage, inputs=inputs, other_inputs={**inputs, **other.inputs})


def _recorded(model: torch.nn.Module, inputs: Mapping[str, Any]) -> list[Stage]:
    """Return the stages with the inputs that `generate` passes."""
    kind = type(model).__name__
    if not can_export(model):
        raise InputError(
            f"{kind} has no stages: only generating models of transformers' classes have stages, with a release of "
            "transformers that has exporters; export it without stages"
        )
    if not model.can_generate():  # type: ignore[operator]  # a PreTrainedModel
        raise InputError(
            f"{kind} has no stages: it cannot generate; load its class that can, or export it without stages"
        )
    with outer_calls(model) as calls:
        try:
            parts = decompose_for_generation(model, dict(inputs))
        except UnsupportedLibraryError:
            raise
        except Exception as error:
            raise InputError(
                f"{kind} cannot be decomposed into stages: generating from {', '.join(inputs) or 'no inputs'} fails "
                f"with {in_one_line(root_cause(error))}; pass the inputs that {kind}.generate takes"
            ) from error
    modules = dict(model.named_modules())
    paths = {id(module): path for path, module in modules.items()}
    # transformers returns the whole model as a shallow copy, whose `id()` is not that of the root.
    found = [(name, paths.get(id(part), ROOT_PATH), part_inputs) for name, (part, part_inputs) in parts.items()]
    found = _with_last_step(found, [call_inputs for path, call_inputs in calls if path == ROOT_PATH])
    known = {path for _, path, _ in found}
    other = {path: call_inputs for path, call_inputs in reversed(calls) if path not in known}
    stages = [(path.rpartition(".")[2], path, other[path]) for path in dict(calls) if path in other]
    stages += found
    names = _unique_names([name for name, _, _ in stages], [path for _, path, _ in stages])
    return [
        Stage(name, path, modules[path], _tensors_first(stage_inputs))
        for name, (_, path, stage_inputs) in zip(names, stages, strict=True)
    ]


@contextlib.contextmanager
def outer_calls(model: torch.nn.Module) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Yield a list that collects the calls from outside any other module, with their arguments by name."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def enter(call: RunningCall[None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if call.parent is None:
            calls.append((call.id.path, copy.deepcopy(_by_name(call.module, args, kwargs))))

    with CallWatch(enter, lambda *_: None).watching(dict(model.named_modules())):
        yield calls


def _by_name(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    signature = inspect.signature(module.forward)
    named: dict[str, Any] = {}
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        elif kind is not inspect.Parameter.VAR_POSITIONAL:
            named[name] = value
    named.pop(_GENERATE_ONLY, None)
    return named


def _with_last_step(
    found: list[tuple[str, str, dict[str, Any]]], root_calls: list[dict[str, Any]]
) -> list[tuple[str, str, dict[str, Any]]]:
    """Replace the inputs of the first decode step by those of the last one that `generate` ran.

    After a prompt of one token, as most encoder-decoders have, the cache has length 1, and torch treats an axis of size
    1 as constant.
    """
    last = max((index for index, (_, path, _) in enumerate(found) if path == ROOT_PATH), default=None)
    if last is None or not root_calls:
        return found
    name, path, _ = found[last]
    return [*found[:last], (name, path, root_calls[-1]), *found[last + 1 :]]


def _tensors_first(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs with those that contain tensors first, so that the exporter names the graph's inputs correctly.

    It lists the names after the call, when an empty cache has been filled: the names of its tensors, which are not
    inputs of the graph, must come last.
    """
    return dict(sorted(inputs.items(), key=lambda item: not any(tensors_in(item[1], ""))))


def _unique_names(names: list[str], paths: list[str]) -> list[str]:
    """Return the names as parts of file names; the module's path where two names would be equal."""
    safe = [_UNSAFE.sub("_", name) or "_" for name in names]
    return [
        name if safe.count(name) == 1 or not path else f"{_UNSAFE.sub('_', path)}"
        for name, path in zip(safe, paths, strict=True)
    ]
