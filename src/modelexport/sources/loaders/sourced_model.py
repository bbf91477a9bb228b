"""What a source gives: a model, with what came along with it; and what a source can be told."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

import torch

from modelexport.errors import InputError, ModelSourceError

# Models with made-up weights are the same each time.
SEED = 0
_SHOWN_NAMES = 3


@dataclasses.dataclass(frozen=True)
class LoadOptions:
    """How a model is to be loaded. Each source takes some of these, and refuses the others where they are given.

    Attributes:
        task: What the model is for: a task name of transformers, or the name of one of its auto classes.
        revision: A branch, tag or commit of a repository on the HuggingFace hub.
        trust_remote_code: Let code that came with the model run.
        dtype: The torch type of the weights, such as ``float32``; by default as they are stored.
        attn_implementation: How transformers computes attention, such as ``eager`` or ``sdpa``.
        random_weights: Make the weights up, always the same ones, and read none.
    """

    task: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    dtype: str | None = None
    attn_implementation: str | None = None
    random_weights: bool = False

    def only(self, reference: str, taken: Collection[str] = ()) -> None:
        """Refuses what the source of a reference has no use for, rather than to leave it out silently.

        Raises:
            InputError: An option is given that is not taken.
        """
        for field in dataclasses.fields(self):
            if field.name not in taken and getattr(self, field.name) != field.default:
                option = f"--{field.name.replace('_', '-')}"
                raise InputError(f"{reference} takes no {option}: leave it out")

    def torch_dtype(self) -> torch.dtype | None:
        """The type of the weights, where one is given.

        Raises:
            InputError: It is no type for weights.
        """
        if self.dtype is None:
            return None
        found = getattr(torch, self.dtype, None)
        if not isinstance(found, torch.dtype) or not found.is_floating_point:
            raise InputError(f"--dtype {self.dtype!r} is no torch type for weights: write float32, float16 or bfloat16")
        return found


DEFAULT_OPTIONS = LoadOptions()


@dataclasses.dataclass(frozen=True)
class SourcedModel:
    """A model, and what its source gives along with it.

    Attributes:
        model: The model, ready to run.
        example_inputs: What forward takes, where the source knows.
        processor: Loads, when it is called, the tokenizer, image processor, feature extractor or processor that came
            with the model; gives None where there is none.
        notes: What the user should know about the weights.
    """

    model: torch.nn.Module
    example_inputs: Any | None = None
    processor: Callable[[], Any] | None = None
    notes: tuple[str, ...] = ()


def notes_on_missing(reference: str, model: torch.nn.Module, missing: Collection[str]) -> tuple[str, ...]:
    """What to say about weights that a model has and its files have not, and that the library made up.

    Raises:
        ModelSourceError: All of them were.
    """
    if not missing:
        return ()
    name = type(model).__name__
    if len(missing) >= len(model.state_dict()):
        raise ModelSourceError(f"{reference}: none of its weights is one of {name}'s, which it was loaded as")
    shown = ", ".join(sorted(missing)[:_SHOWN_NAMES]) + (", ..." if len(missing) > _SHOWN_NAMES else "")
    return (f"{len(missing)} weights of {name} are not in {reference} and were made up: {shown}",)
