"""The result of loading a model, and the options of loading."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from modelexport.display import counted
from modelexport.errors import InputError, ModelSourceError
from modelexport.gc_pause import gc_paused
from modelexport.sources.loaders.libraries import explain_load_error
from modelexport.torch_support import in_this_thread

# Random weights are the same each time.
_SEED = 0
_SHOWN_NAMES = 3
# Models with hundreds of experts in each layer have about 60,000.
_MOST_MODULES = 100_000


@dataclasses.dataclass(frozen=True)
class LoadOptions:
    """Options of loading a model. Each loader supports some of them and refuses the others.

    Attributes:
        task: A task name of transformers, or the name of one of its auto classes.
        revision: A branch, tag or commit of a repository on the HuggingFace hub.
        trust_remote_code: Run Python code from the model's repository.
        dtype: The torch dtype of the weights, such as ``float32``; by default as they are stored.
        attn_implementation: How transformers computes attention, such as ``eager`` or ``sdpa``.
        random_weights: Initialize the weights at random with a fixed seed instead of reading them.
    """

    task: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    dtype: str | None = None
    attn_implementation: str | None = None
    random_weights: bool = False

    def only(self, reference: str, supported: Collection[str] = ()) -> None:
        """Refuse options that do not apply to a reference, rather than ignore them.

        Raises:
            InputError: An option is set that is not supported.
        """
        for field in dataclasses.fields(self):
            if field.name not in supported and getattr(self, field.name) != field.default:
                option = f"--{field.name.replace('_', '-')}"
                raise InputError(f"{reference} does not support {option}: remove it")

    def torch_dtype(self) -> torch.dtype | None:
        """The dtype of the weights, if one is set.

        Raises:
            InputError: It is not a floating-point dtype.
        """
        if self.dtype is None:
            return None
        found = getattr(torch, self.dtype, None)
        if not isinstance(found, torch.dtype) or not found.is_floating_point:
            raise InputError(
                f"--dtype {self.dtype!r} is not a floating-point dtype: write float32, float16 or bfloat16"
            )
        return found


DEFAULT_OPTIONS = LoadOptions()


@dataclasses.dataclass(frozen=True)
class SourcedModel:
    """A loaded model with its example inputs and processor.

    Attributes:
        model: The model, ready to run.
        example_inputs: Example inputs for `forward`, if the source has some.
        processor: Loads the tokenizer, image processor, feature extractor or processor of the model when called;
            returns None if it has none.
        notes: What the user should know about the weights.
    """

    model: torch.nn.Module
    example_inputs: Any | None = None
    processor: Callable[[], Any] | None = None
    notes: tuple[str, ...] = ()


@contextlib.contextmanager
def building(reference: str, revision: str | None, weights: Iterable[Path] = ()) -> Iterator[None]:
    """Build a model of a library: with fixed random weights, in bounded size, and its errors translated to ours."""
    try:
        with torch.random.fork_rng(devices=[]), size_limit(reference):
            torch.manual_seed(_SEED)
            yield
    except Exception as error:
        raise explain_load_error(reference, revision, error, weights=weights) from error


@contextlib.contextmanager
def size_limit(reference: str, most_modules: int = _MOST_MODULES) -> Iterator[None]:
    """Limit the number of modules and the size of the parameters that are created within the context.

    A configuration may come from anywhere, and a few characters of it ask for a billion layers.
    """
    modules = size = 0
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else math.inf

    def count_module(*_: object) -> None:
        nonlocal modules
        modules += 1
        if modules > most_modules:
            raise ModelSourceError(
                f"{reference}: its configuration asks for over {most_modules:,} modules: check the number of layers"
            )

    def count_parameter(module: object, name: object, parameter: torch.Tensor | None) -> None:
        nonlocal size
        size += 0 if parameter is None or parameter.is_meta else parameter.nbytes
        if size > memory:
            raise ModelSourceError(
                f"{reference}: its configuration asks for more weights than the memory of this machine, "
                f"{memory / 2**30:.0f} GiB, can hold: check its sizes"
            )

    with gc_paused(), contextlib.ExitStack() as stack:
        stack.callback(register_module_module_registration_hook(in_this_thread(count_module)).remove)
        stack.callback(register_module_parameter_registration_hook(in_this_thread(count_parameter)).remove)
        yield


def notes_on_missing(reference: str, model: torch.nn.Module, missing: Collection[str]) -> tuple[str, ...]:
    """Notes on weights that are missing from the files and were initialized at random."""
    if not missing:
        return ()
    name = type(model).__name__
    if len(missing) >= len(model.state_dict()):
        raise ModelSourceError(f"{reference}: none of its weights belongs to {name}, the class that it was loaded as")
    shown = ", ".join(sorted(missing)[:_SHOWN_NAMES]) + (", ..." if len(missing) > _SHOWN_NAMES else "")
    return (f"{reference} lacks {counted(len(missing), 'weight')} of {name}, initialized at random: {shown}",)
