"""The models of the sweep: which there are in the installed libraries, and how each is built small.

Every model type of transformers that has a base model, every family of timm, every model class of diffusers. They
are found in what the libraries list themselves, and made small by `sweep_shrinking`: no model has code of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from benchmarks.sweep_process import run_limited
from benchmarks.sweep_shrinking import LEVELS, Level, Shrinking, settings_of, shrink_configuration

from modelexport.sources.inputs.synthesis.failure_hints import mentioned

Builder = tuple[str, Callable[[], torch.nn.Module]]

SEED = 0
# How a model is built with the settings that its library gives it.
UNCHANGED = "unchanged"
# A model with more parameters than this is not small.
MOST_PARAMETERS = 150_000_000
# So many models of a timm family are looked at to find its smallest.
_MOST_LOOKED_AT = 16
# The number of settings without a default that are synthesized, and their values.
_MOST_MISSING = 6
_SMALL_NUMBER = 4
_INT = re.compile(r"\bint\b")
_APART = Path(sys.prefix) / "apart"
# What torch forgets when nobody holds it.
_kept: list[Any] = []
_SMALL_WORDS = ("test", "atto", "femto", "pico", "nano", "xxs", "xx_small", "tiny", "mini", "xs", "_s", "small", "0")
# What timm's models may take to be smaller, for those that do.
_SMALLER: tuple[dict[str, int], ...] = ({"img_size": 64, "depth": 2}, {"img_size": 64}, {"img_size": 128}, {})


@dataclasses.dataclass(frozen=True, order=True)
class Candidate:
    """A model of the sweep: the library it is from, and what that calls it."""

    source: str
    name: str

    def __str__(self) -> str:
        return f"{self.source}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Candidate:
        """The candidate of that name."""
        source, _, name = text.partition(":")
        return cls(source, name)


class NotSmallError(Exception):
    """The model cannot be made small."""


def list_candidates() -> list[Candidate]:
    """All that the installed libraries have, in an order that makes any beginning of it a fair sample."""
    found = [Candidate(source, name) for source, names in _LISTS.items() for name in names()]
    # By a hash of the name: another library installed leaves the order of the others as it was.
    return sorted(found, key=lambda candidate: hashlib.sha256(f"{SEED} {candidate}".encode()).digest())


def builders(candidate: Candidate, levels: Sequence[Level] = LEVELS) -> Iterator[Builder]:
    """Ways to build the model, the smallest first, each with what it is called; not every one need work."""
    return _BUILDERS[candidate.source](candidate.name, levels)


def build(make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """A model with random weights that are always the same, in evaluation mode.

    Raises:
        NotSmallError: It has too many parameters.
    """
    torch.manual_seed(SEED)
    without_memory: Exception | None = None
    try:
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in make().parameters())
    except Exception as error:  # noqa: BLE001  some models compute with their weights while they are built
        size, without_memory = 0, error
    if size > MOST_PARAMETERS:
        raise NotSmallError(f"{size / 1e6:.0f} M parameters")
    torch.manual_seed(SEED)
    try:
        model = make().eval()
    except RuntimeError as error:
        if without_memory is not None and "can't allocate memory" in str(error):
            raise without_memory from None
        raise
    if sum(parameter.numel() for parameter in model.parameters()) > MOST_PARAMETERS:
        raise NotSmallError("too many parameters")
    return _with_distinct_weights(model.float())


def _with_distinct_weights(model: torch.nn.Module) -> torch.nn.Module:
    """The model with noise in what training would have changed and is all equal: by value, such layers are one."""
    with torch.no_grad():
        for weight in model.state_dict().values():
            if isinstance(weight, torch.Tensor) and weight.is_floating_point() and weight.is_contiguous():
                values = weight.reshape(-1)
                if weight.numel() > 1 and bool((values == values[0]).all()):
                    weight.add_(torch.randn_like(weight) * 0.02)
    return model


# --- transformers -------------------------------------------------------------------------------------------------


def _transformers_types() -> list[str]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(name for name in CONFIG_MAPPING_NAMES if name in MODEL_MAPPING_NAMES)


def _transformers_builders(model_type: str, levels: Sequence[Level]) -> Iterator[Builder]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    for number, level in enumerate(levels):

        def make(level: Any = level) -> torch.nn.Module:
            config = shrink_configuration(CONFIG_MAPPING[model_type](), level)
            for name in type(config).__dataclass_fields__:
                if "experts" in name.split("_"):
                    # A mixture of experts that is not told how many there are fails far from its configuration.
                    _fill(config, name, level)
            classes = MODEL_MAPPING[type(config)]
            cls = classes[0] if isinstance(classes, tuple) else classes
            return _completed_by(lambda: cls(config), lambda name: _fill(config, name, level))

        yield UNCHANGED if level.changes_nothing else f"level {number}", make


# --- timm ---------------------------------------------------------------------------------------------------------


@functools.cache
def _timm() -> Any:
    """timm with the torchvision that it needs, which may lie apart: other libraries must not find that."""
    from tests.support import torchvision_ops

    if _APART.is_dir():
        sys.path.append(str(_APART))
    _kept.append(torchvision_ops.declare())
    return importlib.import_module("timm")


def _timm_families() -> list[str]:
    # In a process of its own, since it is imported there.
    found = run_limited(lambda: sorted(_timm().list_modules()), cpu_seconds=120, memory_bytes=4 * 2**30)
    return found.get("value", [])


def _timm_builders(family: str, levels: Sequence[Level]) -> Iterator[Builder]:
    name = _smallest_of(family)
    for options in _SMALLER:

        def make(options: dict[str, int] = options) -> torch.nn.Module:
            return _timm().create_model(name, pretrained=False, **options)

        yield " ".join([name, *(f"{option}={value}" for option, value in options.items())]), make


@functools.cache
def _smallest_of(family: str) -> str:
    """The model of the family with the fewest parameters, among those whose names promise it."""
    timm = _timm()
    names = timm.list_models(module=family)
    names.sort(
        key=lambda name: (min((i for i, w in enumerate(_SMALL_WORDS) if w in name), default=99), len(name), name)
    )
    sizes: dict[str, int] = {}
    for name in names[:_MOST_LOOKED_AT]:
        try:
            with torch.device("meta"):
                sizes[name] = sum(p.numel() for p in timm.create_model(name, pretrained=False).parameters())
        except Exception:  # noqa: BLE001  another model of the family may do
            continue
        if sizes[name] < 1_000_000:
            break
    return min(sizes, key=lambda name: sizes[name]) if sizes else names[0]


# --- diffusers ----------------------------------------------------------------------------------------------------


def _diffusers_classes() -> list[str]:
    if not _is_installed("diffusers"):
        return []
    import diffusers
    from diffusers.models.modeling_utils import ModelMixin

    found = []
    for name in diffusers._import_structure.get("models", ()):
        try:
            cls = getattr(diffusers, name)
        except Exception:  # noqa: BLE001  a class that needs a library which is not here
            continue
        if inspect.isclass(cls) and issubclass(cls, ModelMixin) and cls is not ModelMixin:
            found.append(name)
    return sorted(found)


def _diffusers_builders(name: str, levels: Sequence[Level]) -> Iterator[Builder]:
    import diffusers

    for number, level in enumerate(levels):

        def make(level: Any = level) -> torch.nn.Module:
            cls = getattr(diffusers, name)
            settings = settings_of(cls)
            return _completed(cls, Shrinking.of(level, settings, related=True).shrink(settings))

        yield UNCHANGED if level.changes_nothing else f"level {number}", make


def _completed(cls: Any, settings: dict[str, Any]) -> Any:
    """The model, where what is nothing by default and missing in the code that fails becomes a small number."""
    given = dict(settings)
    parameters = inspect.signature(cls).parameters

    def fill(name: str) -> bool:
        if given.get(name, name) is not None or not _INT.search(str(parameters[name].annotation)):
            return False
        given[name] = _SMALL_NUMBER
        return True

    return _completed_by(lambda: cls(**given), fill)


def _completed_by(make: Callable[[], Any], fill: Callable[[str], bool]) -> Any:
    """What is made, after `fill` has given what the code that fails speaks of, as often as it can."""
    for _ in range(_MOST_MISSING):
        try:
            return make()
        except (TypeError, ValueError, AttributeError) as error:
            if not any(fill(name) for name in mentioned(error)):
                raise
    return make()


def _fill(config: Any, name: str, level: Level) -> bool:
    """Give a value of this name that a configuration, or a part of it, has none for."""
    from transformers import PreTrainedConfig

    for part in (config, *(value for value in vars(config).values() if isinstance(value, PreTrainedConfig))):
        field = getattr(type(part), "__dataclass_fields__", {}).get(name)
        if field is None or getattr(part, name, name) is not None:
            continue
        number = level.vocabulary if name.startswith("vocab") else _SMALL_NUMBER
        made_up = {"dict": {}, "list": [], "int": number}
        kind = next((kind for kind in made_up if re.search(rf"\b{kind}\b", str(field.type))), None)
        if kind is not None:
            setattr(part, name, made_up[kind])
            return True
    return False


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


_LISTS = {"transformers": _transformers_types, "timm": _timm_families, "diffusers": _diffusers_classes}
_BUILDERS = {"transformers": _transformers_builders, "timm": _timm_builders, "diffusers": _diffusers_builders}
