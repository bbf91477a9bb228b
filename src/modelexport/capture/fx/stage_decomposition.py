"""The stages of a model that generates: what `generate` runs, as transformers' own exporters take it apart.

Where a model of transformers generates, they give the first forward over the prompt and a later one over the cache, or
the parts of a model of several modalities. What `generate` runs by itself before that (an encoder, a projector) they
leave out; it is seen by hooks, as the modules that are called outside of any other.
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

from modelexport.capture import can_export, in_one_line, root_cause
from modelexport.errors import InputError, UnsupportedLibraryError
from modelexport.hierarchy import ROOT_PATH
from modelexport.torch_support import CallWatch, RunningCall
from modelexport.torch_support.transformers_private import decompose_for_generation, holds_tensors

# What only `generate` cares about: transformers' own exporters leave it out as well.
_ONLY_FOR_GENERATING = "logits_to_keep"
_UNSAFE = re.compile(r"[^\w-]+")


@dataclasses.dataclass(frozen=True)
class Stage:
    """A part of generating that is exported on its own.

    Attributes:
        name: What it is called: transformers' name for it, or the module's own.
        path: The module that runs, by its path in the whole model; the root's is empty.
        module: That module.
        inputs: What `generate` called it with, by the names of its forward arguments.
    """

    name: str
    path: str
    module: torch.nn.Module
    inputs: dict[str, Any]


def decompose(model: torch.nn.Module, inputs: Mapping[str, Any]) -> list[Stage]:
    """The stages of a model, in the order they run when it generates.

    Args:
        model: The model, in evaluation mode.
        inputs: What `generate` takes, by name.

    Raises:
        InputError: The model has no stages, or cannot generate from these inputs.
    """
    kind = type(model).__name__
    if not can_export(model):
        raise InputError(
            f"{kind} has no stages: only models of transformers' classes that generate have, with a release of "
            "transformers that has exporters; export it without stages"
        )
    if not model.can_generate():  # type: ignore[operator]  # a PreTrainedModel
        raise InputError(
            f"{kind} has no stages: it does not generate; load the class of it that does, or export it without stages"
        )
    with _watched(model) as calls:
        try:
            # With several tokens `generate` takes one step more: see `_later_step`.
            parts = decompose_for_generation(model, dict(inputs))
        except UnsupportedLibraryError:
            raise
        except Exception as error:
            raise InputError(
                f"{kind} cannot be taken apart into stages: generating from {', '.join(inputs) or 'nothing'} ends in "
                f"{in_one_line(root_cause(error))}; give the inputs that {kind}.generate takes"
            ) from error
    paths = {id(module): path for path, module in model.named_modules()}
    # The whole model comes as a shallow copy, which is none of its modules.
    found = [(name, paths.get(id(part), ROOT_PATH), given) for name, (part, given) in parts.items()]
    found = _later_step(found, [given for path, given in calls if path == ROOT_PATH])
    seen = {path for _, path, _ in found}
    alone = {path: given for path, given in reversed(calls) if path not in seen}
    stages = [(_own_name(path), path, alone[path]) for path in dict(calls) if path in alone]
    names = _different([name for name, _, _ in (*stages, *found)], [path for _, path, _ in (*stages, *found)])
    return [
        Stage(name, path, model.get_submodule(path), _without_tensors_last(given))
        for name, (_, path, given) in zip(names, (*stages, *found), strict=True)
    ]


@contextlib.contextmanager
def _watched(model: torch.nn.Module) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """The calls that no other module makes, with their arguments by name, as they come."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def enter(call: RunningCall[None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if call.parent is None:
            calls.append((call.id.path, copy.deepcopy(_by_name(call.module, args, kwargs))))

    def leave(*_: object) -> None:
        """What a call returns does not matter here."""

    with CallWatch(enter, leave).watching(dict(model.named_modules())):
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
    named.pop(_ONLY_FOR_GENERATING, None)
    return named


def _later_step(
    found: list[tuple[str, str, dict[str, Any]]], whole: list[dict[str, Any]]
) -> list[tuple[str, str, dict[str, Any]]]:
    """With the last forward that `generate` ran in place of the one right after the prompt.

    Where the prompt is one token, as it is for most encoder-decoders, the cache has length 1 right after it, and an
    axis of size 1 is taken for one that never changes.
    """
    last = max((place for place, (_, path, _) in enumerate(found) if path == ROOT_PATH), default=None)
    if last is None or not whole:
        return found
    name, path, _ = found[last]
    return [*found[:last], (name, path, whole[-1]), *found[last + 1 :]]


def _without_tensors_last(inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs in the order that the exporter gives the graph's inputs their right names in.

    It asks for the names after the call, by when a cache that came empty is full: names of tensors that are no inputs
    must come behind all others.
    """
    return dict(sorted(inputs.items(), key=lambda item: not holds_tensors(item[1])))


def _own_name(path: str) -> str:
    return path.rpartition(".")[2]


def _different(names: list[str], paths: list[str]) -> list[str]:
    """The names as parts of file names, the whole path where two would be the same."""
    safe = [_UNSAFE.sub("_", name) or "_" for name in names]
    return [
        name if safe.count(name) == 1 or not path else f"{_UNSAFE.sub('_', path)}"
        for name, path in zip(safe, paths, strict=True)
    ]
