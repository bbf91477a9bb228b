"""Makes the settings of a model small, whatever the model: numbers are capped so that what divided still divides.

Nothing here knows an architecture. A number is judged by its size and by the words that libraries use for settings
of all their models (`num_…`, `…_layers`, `vocab_size`, `…_token_id`). Where the smallest model cannot be built, or
does not run, the next level is closer to the original.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Level:
    """How small numbers become.

    Attributes:
        layers: At most so many layers.
        count: Numbers of things, and numbers up to `small`, become at most this power of two; None leaves them.
        small: Numbers up to this are taken for counts; None leaves them as they are.
        size: Sizes become a power of two that is at most this; None leaves them as they are.
        vocabulary: At most so many tokens.
        divisor: Divide sizes and counts by this, or by less where it does not divide the numbers of heads, and leave
            the width of a head: what is a product of others stays one.
    """

    layers: int
    count: int | None
    small: int | None
    size: int | None
    vocabulary: int
    divisor: int | None = None


# For a quick look.
SMALLEST = Level(layers=1, count=4, small=64, size=32, vocabulary=64)

LEVELS = (
    Level(layers=2, count=4, small=64, size=64, vocabulary=128),
    Level(layers=2, count=4, small=None, size=64, vocabulary=256, divisor=8),
    Level(layers=2, count=4, small=None, size=256, vocabulary=1024),
    Level(layers=1024, count=None, small=None, size=None, vocabulary=1 << 24),
    Level(layers=8, count=4, small=None, size=64, vocabulary=256),
    Level(layers=2, count=8, small=None, size=128, vocabulary=1024),
    Level(layers=2, count=4, small=None, size=512, vocabulary=1024),
    Level(layers=64, count=4, small=64, size=64, vocabulary=128),
)

# A model whose layers are of several kinds has more of them at any level, for one of each kind, up to this.
_MOST_FOR_KINDS = 8
_FEW = 4
_ID = re.compile(r"(?:^|_)(?:token_)?(?:ids?|index|token|idx)$")
# Tokens that stand for something else: a model that takes both does not run without their number.
_TOKEN = re.compile(r"^(?:image|video|audio)_token_(?:id|index)$")
_LARGE = 1 << 24
_PLACES = re.compile(r"(?:^|_)(?:ind(?:ex|exes|ices)|layer_ids?|layers?_idx)(?:_|$)")
# What ends with channels is no number of layers, though it be that of each block.
_LAYERS = re.compile(r"(?!.*channels$)(?:.*_)?(?:layers?|depths?|blocks?)(?:_|$)|^depth(?!.*channels$)")
_HEADS = re.compile(r"(?:^|_)heads?(?:_|$)")
_COUNT = re.compile(r"^(?:num|number)_|(?:^|_)experts$")
_VOCABULARY = re.compile(r"(?:^|_)vocab")


class Shrinking:
    """The settings of one model made small: equal numbers stay equal, in all its parts."""

    def __init__(self, level: Level, related: bool = False) -> None:
        """Settings made as small as the level says; `related`: numbers that are sums or products of others stay so."""
        self._level = level
        self._related = related
        self._ids: dict[int, int] = {}
        self._vocabulary = level.vocabulary
        # Lists that have an entry for each layer are as long as there were layers.
        self._lengths: dict[int, int] = {}

    @classmethod
    def of(cls, level: Level, default: Any) -> Shrinking:
        """For the level, with a divisor that divides the numbers of heads in all parts of a configuration."""
        heads = [value for name, value in _numbers(default.to_dict()) if _counts_heads(name) and value > _FEW]
        divisor = math.gcd(*heads, level.divisor) if level.divisor is not None else None
        # Heads without a common divisor are divided all the same.
        return cls(dataclasses.replace(level, divisor=divisor if divisor != 1 else level.divisor))

    def with_layers(self, layers: int) -> Shrinking:
        """The same for a part of the model that needs this many layers."""
        if layers <= self._level.layers:
            return self
        other = copy.copy(self)
        other._level = dataclasses.replace(self._level, layers=layers)
        other._lengths = {}
        return other

    def shrink(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with smaller numbers in them; what is no number, or no list of some, stays."""
        for name, value in settings.items():
            if _is_number(value) and _LAYERS.match(name) and value > self._level.layers:
                self._lengths[value] = self._level.layers
        small = {name: self._shrink(name, value) for name, value in settings.items()}
        return _with_relations(settings, small) if self._related else small

    def _shrink(self, name: str, value: Any) -> Any:
        if _is_number(value):
            return self._number(name, value)
        if isinstance(value, list | tuple) and value:
            return type(value)(self._sequence(name, list(value)))
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {key: self._shrink(key, entry) for key, entry in value.items()}
        return value

    def _number(self, name: str, value: int) -> int:
        level = self._level
        if value <= 1:
            return value
        if _ID.search(name) and not _PLACES.search(name):
            return self._id(value)
        if _VOCABULARY.search(name):
            return min(value, level.vocabulary) if value > _FEW else value
        if _LAYERS.match(name):
            return min(value, level.layers) if value <= 256 else _power(value, level.size)
        if _COUNT.search(name):
            return value if value <= _FEW else self._lessened(name, value, level.count)
        if value <= _FEW:
            return value
        # A kernel or a window with a middle keeps one.
        has_middle = value % 2 == 1 and (value < 32 or "kernel" in name)
        if (value <= 64 and level.small is None) or (has_middle and level.size is None):
            return value
        if has_middle:
            return 3
        if value <= 64:
            return _power(value, level.count)
        return self._lessened(name, value, level.size)

    def _lessened(self, name: str, value: int, most: int | None) -> int:
        if self._level.divisor is None:
            return _power(value, most)
        is_width_of_head = _HEADS.search(name) and not _counts_heads(name)
        return value if is_width_of_head else max(1, value // self._level.divisor)

    def _id(self, value: int) -> int:
        """The number of a token: one of the small vocabulary, another for each."""
        if value < self._vocabulary // 2:
            return value
        return self._ids.setdefault(value, self._vocabulary - 1 - len(self._ids) % (self._vocabulary // 2))

    def _sequence(self, name: str, values: list[Any]) -> list[Any]:
        values = self._shortened(values)
        if all(_is_number(value) for value in values):
            if _PLACES.search(name) or self._numbers_layers(name, values):
                return self._places(values)
            smaller = [self._number(name, value) for value in values]
            if smaller != values and len(set(values)) > 1 and self._level.divisor is None:
                # Numbers that grow together are small together: a three among them would divide no other. A few that
                # do not count anything (the colours of an image) stay.
                counts = bool(_COUNT.search(name) or _HEADS.search(name))
                return [
                    _power(small, small) if small > 1 and small % 2 and (counts or value > _FEW) else small
                    for value, small in zip(values, smaller, strict=True)
                ]
            return smaller
        return [self._shrink(name, value) if isinstance(value, list | tuple | dict) else value for value in values]

    def _numbers_layers(self, name: str, values: list[int]) -> bool:
        """Whether a list speaks of certain layers: it has to do with layers, grows, and ends below their number."""
        if not _LAYERS.match(name) or values != sorted(set(values)) or min(values) < 0:
            return False
        return max(values) > self._level.layers and any(max(values) < layers for layers in self._lengths)

    def _places(self, values: list[int]) -> list[int]:
        """Numbers of layers: as many different ones of the layers that are left."""
        most = self._level.layers
        if max(values) < most:
            return values
        return list(range(max(0, most - len(values)), most))

    def _shortened(self, values: list[Any]) -> list[Any]:
        """A list with an entry for each layer, with as many as there are left: one of each kind as far as they go."""
        length = self._lengths.get(len(values))
        if length is None:
            return values
        kinds: dict[str, int] = {}
        for place, value in enumerate(values):
            kinds.setdefault(repr(value), place)
        places = sorted([*kinds.values()][:length])
        places += [place for place in range(len(values)) if place not in places][: length - len(places)]
        return [values[place] for place in sorted(places)]


def settings_of(factory: Any) -> dict[str, Any]:
    """The settings that a class or function takes by name, as they are when none is given."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(factory).parameters.items()
        if parameter.default is not inspect.Parameter.empty
        and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }


def shrink_configuration(default: Any, level: Level, shrinking: Shrinking | None = None) -> Any:
    """A transformers configuration of the same class as `default`, small, with its parts small too.

    What a configuration works out by itself when it is not given (the kind of each layer, say) is left to it.
    """
    from transformers import PreTrainedConfig

    shrinking = (shrinking or Shrinking.of(level, default)).with_layers(_layers_for_kinds(default))
    cls = type(default)
    given: dict[str, Any] = {}
    parts: dict[str, Any] = {}
    untouched = settings_of(cls)
    for name, field in getattr(cls, "__dataclass_fields__", {}).items():
        if field.init and field.default_factory is not dataclasses.MISSING:
            untouched[name] = field.default_factory()
    own = _own_settings(cls)
    for name, preset in untouched.items():
        value = _value(default, name, preset)
        if isinstance(value, PreTrainedConfig):
            parts[name] = shrink_configuration(value, level, shrinking)
        elif name.startswith("_"):
            # The outputs of a backbone, which it takes by their public name and as text or as numbers.
            if isinstance(value, list | tuple) and value and all(isinstance(entry, str) for entry in value):
                given[name.lstrip("_")] = value
        elif name in own and value is not None and (preset is not None or _was_given(cls, name, value)):
            given[name] = value
        elif name in own and value is None and _TOKEN.search(name):
            # A number for each, which becomes one of the small vocabulary.
            given[name] = _LARGE + len(given)
    return cls(**shrinking.shrink(given), **parts)


def _layers_for_kinds(default: Any) -> int:
    """So many layers has a model to have for one of each kind, where its configuration says what kind each is."""
    kinds = _value(default, "layer_types", None)
    if not isinstance(kinds, list | tuple) or not kinds:
        return 0
    needed = 1 + max(list(kinds).index(kind) for kind in set(kinds))
    return needed if needed <= _MOST_FOR_KINDS else 0


def _own_settings(cls: type) -> set[str]:
    """The settings that the class itself has, and not every configuration."""
    from transformers import PreTrainedConfig

    return set(settings_of(cls)) - set(PreTrainedConfig.__dataclass_fields__)


def _value(default: Any, name: str, preset: Any) -> Any:
    try:
        return getattr(default, name, preset)
    except Exception:  # noqa: BLE001  a setting that each layer has its own of cannot be read
        return preset


def _was_given(cls: type, name: str, value: Any) -> bool:
    """Whether a setting that is nothing by default was set by whoever made the configuration."""
    try:
        return bool(_value(cls(), name, None) != value)
    except Exception:  # noqa: BLE001  a part that cannot be made by itself: what it has was given
        return True


def _with_relations(settings: Mapping[str, Any], small: dict[str, Any]) -> dict[str, Any]:
    """The small settings, where a number that was the sum of a list, or heads by their width, is that again."""
    sums = {sum(value): sum(small[name]) for name, value in settings.items() if _is_list_of_sizes(value)}
    changed = _replaced(settings, small, sums)
    heads = [name for name, value in settings.items() if _is_number(value) and _HEADS.search(name) and value > 1]
    counts = [name for name in heads if _counts_heads(name)]
    products: dict[int, int] = {}
    for count, width in itertools.product(counts, [name for name in heads if name not in counts]):
        product = settings[count] * settings[width]
        # Two pairs that come to the same do so again.
        if product in products and products[product] % changed[count] == 0:
            changed[width] = products[product] // changed[count]
        products.setdefault(product, changed[count] * changed[width])
    return _replaced(settings, changed, products)


def _replaced(settings: Mapping[str, Any], small: dict[str, Any], numbers: Mapping[int, int]) -> dict[str, Any]:
    return {
        name: numbers[settings[name]] if _is_number(settings[name]) and settings[name] in numbers else value
        for name, value in small.items()
    }


def _counts_heads(name: str) -> bool:
    return bool(_HEADS.search(name)) and (bool(_COUNT.search(name)) or name.endswith("heads"))


def _numbers(settings: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The whole numbers in nested settings, with their names."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif _is_number(value):
            yield str(name), value


def _is_list_of_sizes(value: object) -> bool:
    return isinstance(value, list | tuple) and 1 < len(value) <= _FEW and all(_is_number(v) and v > 1 for v in value)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _power(value: int, most: int | None) -> int:
    """The largest power of two that is neither above the value nor above the most there may be."""
    if most is None:
        return value
    return 1 << (min(value, most).bit_length() - 1)
