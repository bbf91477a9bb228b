"""What a model tells about itself: the signature of its forward, its configuration and its modules."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

_MAX_PARTS = 1000
# Modules that fix the channels and the rank of their input, and those that look token numbers up.
CONVOLUTIONS = (
    torch.nn.Conv1d,
    torch.nn.Conv2d,
    torch.nn.Conv3d,
    torch.nn.ConvTranspose1d,
    torch.nn.ConvTranspose2d,
    torch.nn.ConvTranspose3d,
)
EMBEDDINGS = (torch.nn.Embedding, torch.nn.EmbeddingBag)


@dataclasses.dataclass(frozen=True)
class ModelFacts:
    """What a model tells about itself: the signature of its forward, its configuration and its modules."""

    parameters: Mapping[str, inspect.Parameter]
    positional: tuple[str, ...]
    main_inputs: tuple[str, ...]
    config: tuple[tuple[str, Any], ...]
    dtype: torch.dtype
    modules: tuple[torch.nn.Module, ...]

    @classmethod
    def read(cls, model: torch.nn.Module) -> ModelFacts:
        """Read the facts of a model."""
        taken = inspect.signature(model.forward).parameters
        parameters = {name: p for name, p in taken.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        if not parameters:
            parameters = {name: p for name, p in taken.items() if p.kind is p.VAR_POSITIONAL}
        main = getattr(model, "main_input_name", ())
        names = (main,) if isinstance(main, str) else tuple(main) if isinstance(main, list | tuple) else ()
        floats = (weight.dtype for weight in model.parameters() if weight.is_floating_point())
        return cls(
            parameters,
            tuple(name for name, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)),
            tuple(name for name in names if name in parameters),
            tuple(_entries(_configuration(model))),
            next(floats, torch.float32),
            tuple(model.modules()),
        )

    def number(self, *keys: str) -> int | None:
        """The first whole number in the configuration that has one of these names, the outermost first."""
        found = (value for key in keys for name, value in self.config if name == key)
        return next((v for v in found if isinstance(v, int) and not isinstance(v, bool) and v > 0), None)

    def sizes(self, *keys: str) -> tuple[int, ...] | None:
        """The first size or sizes in the configuration under one of these names: `64`, `[64, 64]`, `{"height": 64}`."""
        for key in keys:
            for name, value in self.config:
                found = _sizes(value) if name == key else ()
                if found:
                    return found
        return None

    @property
    def axes(self) -> int | None:
        """The number of coordinates of a position, where the configuration has a list with an entry for each."""
        named = (value for name, value in self.config if "axes" in name.split("_"))
        return next((len(value) for value in named if isinstance(value, list | tuple) and len(value) > 1), None)

    def special_tokens(self) -> dict[str, int]:
        """The special tokens, by their names in the configuration."""
        found: dict[str, int] = {}
        for name, value in self.config:
            if name.endswith(("token_id", "token_index")) and isinstance(value, int) and value >= 0:
                found.setdefault(name, value)
        return found

    @property
    def vocabulary(self) -> int:
        """The size of the vocabulary."""
        return self.number("vocab_size") or next(
            (m.num_embeddings for m in self.modules if isinstance(m, EMBEDDINGS)), 2
        )


def _configuration(model: torch.nn.Module) -> object:
    for name in ("config", "pretrained_cfg", "default_cfg"):
        found = getattr(model, name, None)
        if found is not None and not isinstance(found, torch.nn.Module | torch.Tensor):
            return found
    return None


def _entries(config: object) -> Iterator[tuple[str, Any]]:
    """The entries of a configuration and those nested in it, level by level."""
    level, seen = [_as_mapping(config)], 0
    while level and seen < _MAX_PARTS:
        below: list[Mapping[Any, Any]] = []
        for mapping in level:
            seen += 1
            for key, value in mapping.items():
                yield str(key), value
                nested = _as_mapping(value)
                if nested:
                    below.append(nested)
        level = below


def _as_mapping(value: object) -> Mapping[Any, Any]:
    if isinstance(value, Mapping):
        return value
    convert: Callable[[], object] | None = getattr(value, "to_dict", None)
    if callable(convert) and not isinstance(value, type):
        converted = convert()
        return converted if isinstance(converted, Mapping) else {}
    if value is None or isinstance(value, str | bytes | int | float | list | tuple | set | torch.dtype | type):
        return {}
    return getattr(value, "__dict__", {})


def _sizes(value: object) -> tuple[int, ...]:
    if isinstance(value, Mapping):
        value = [value[key] for key in ("height", "width") if key in value]
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value, value]
    if isinstance(value, list | tuple) and value and all(isinstance(v, int) and v > 0 for v in value):
        return tuple(value[-2:]) if len(value) > 1 else (value[0], value[0])
    return ()
