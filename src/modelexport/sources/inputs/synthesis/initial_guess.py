"""What an argument of a forward may be: by its signature, the configuration and the shapes of parameters."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

import torch

from modelexport.sources.inputs.synthesis.model_facts import CONVOLUTIONS, TABLES, ModelFacts
from modelexport.sources.inputs.synthesis.tensor_spec import Kind, TensorSpec

BATCH = 2
# A number that is rarely a size of anything else: where an error names it, it is this axis.
LENGTH = 7
_SIDE = 64
_LARGEST_SIDE = 1024
_SAMPLES = 4096
_GRID = 4
# The words that libraries of models agree on for what an argument holds.
_IMAGE = frozenset(["pixel", "pixels", "image", "images", "img", "sample"])
_VIDEO = frozenset(["video", "videos"])
_FEATURES = frozenset(["features", "mel", "spectrogram"])
_STATES = frozenset(["embeds", "states", "embeddings", "hidden"])
_SIGNAL = frozenset(["values", "audio", "waveform", "wav", "speech"])
_TIME = frozenset(["timestep", "timesteps"])
_LENGTHS = ("lengths", "length", "lens")
_LIST = re.compile(r"^(?:typing\.)?(?:Optional\[)?(?:typing\.)?[lL]ist\[torch\.\w*Tensor")
_SAYING = _IMAGE | _VIDEO | _FEATURES | _STATES | _SIGNAL


def words(name: str) -> list[str]:
    """The words an argument's name is made of."""
    return [word for word in re.split(r"[_\W]+|(?<=[a-z])(?=[A-Z])", name.lower()) if word]


def takes_input(parameter: inspect.Parameter) -> bool:
    """Whether an argument may be an input: what has a value of its own, or says it is none, is an option."""
    if parameter.default is not None and parameter.default is not parameter.empty:
        return False
    if parameter.annotation is parameter.empty or "Tensor" in str(parameter.annotation):
        return True
    return any(value is not False for value in _plain(parameter))


def propose(facts: ModelFacts, name: str) -> list[Any]:
    """What the argument `name` may be, the likeliest first."""
    parameter = facts.parameters.get(name)
    plain = _plain(parameter)
    if plain:
        return plain
    annotation = "" if parameter is None or parameter.annotation is parameter.empty else str(parameter.annotation)
    found = _tensors(facts, name, annotation)
    if _LIST.search(annotation):
        # One for each of the batch, without an axis for it.
        return [dataclasses.replace(spec, shape=spec.shape[1:], copies=BATCH) for spec in found]
    return found


def _plain(parameter: inspect.Parameter | None) -> list[Any]:
    """Values for an argument that is no tensor, by its annotation."""
    if parameter is None or parameter.annotation is parameter.empty:
        return []
    annotation = parameter.annotation
    said = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    said = str(annotation) if said in ("Optional", "Union", "List", "list", "Dict", "dict", "UnionType", "") else said
    said = re.sub(r"typing\.|Optional|None|[\s|\[\]]", "", said).lower()
    if said in ("bool", "int", "float"):
        return [{"bool": False, "int": 1, "float": 1.0}[said]]
    if said.startswith("dict") and "tensor" not in said:
        return [{}]
    if said == "listint":
        return [[LENGTH] * BATCH, list(range(BATCH))]
    # Lists of sizes in each direction, as many places in all as there are in a sequence.
    sizes = re.search(r"list(?:list)?tuple(?P<ints>int(?:,int)+)", said)
    return [[(*(1,) * sizes["ints"].count(","), LENGTH)] * BATCH] if sizes is not None else []


def _tensors(facts: ModelFacts, name: str, annotation: str) -> list[TensorSpec]:
    grid = _grid(name)
    if grid is not None:
        return [grid]
    kind = _kind(name, annotation)
    if kind is Kind.NUMBERS:
        numbers = [TensorSpec(shape) for shape in _number_shapes(facts, name)]
        # A name that says nothing, and a model that begins with a table to look tokens up in.
        tokens = [TensorSpec((BATCH, LENGTH), Kind.TOKENS, facts.vocabulary)] if _looks_up_first(facts) else []
        return tokens + numbers if not _SAYING & set(words(name)) else numbers
    if kind is not Kind.ONES and words(name)[-1] == "ids" and facts.axes is not None and not _has_table(facts):
        # Nothing to look them up in: they are places, with a number for each direction.
        return [TensorSpec((LENGTH, facts.axes)), TensorSpec((BATCH, LENGTH, facts.axes))]
    shapes = _index_shapes(facts, name, kind)
    below = facts.vocabulary if kind is Kind.TOKENS else 2
    return [TensorSpec(shape, kind, below) for shape in shapes]


def _grid(name: str) -> TensorSpec | None:
    """How many patches images have in each direction, where they are given as lists of patches."""
    said = words(name)
    if said[-1] == "thw":
        return TensorSpec((1, 3), Kind.ONES, rows=((1, _GRID, _GRID),))
    if said[-1] == "hw" or said[-2:] == ["spatial", "shapes"]:
        return TensorSpec((BATCH, 2), Kind.ONES, rows=((_GRID, _GRID),) * BATCH)
    return None


def _patch_shapes(facts: ModelFacts) -> list[tuple[int, ...]]:
    """Images as lists of patches, where a required argument tells how they lie; none otherwise."""
    grids = [_grid(name) for name, parameter in facts.parameters.items() if parameter.default is parameter.empty]
    grid = next((spec for spec in grids if spec is not None), None)
    if grid is None:
        return []
    patches = _GRID * _GRID
    return [(patches, _patch_width(facts)) if len(grid.rows) == 1 else (BATCH, patches, _patch_width(facts))]


def _patch_width(facts: ModelFacts) -> int:
    channels = facts.number("in_channels", "num_channels", "in_chans") or 3
    side = facts.number("patch_size") or 1
    return channels * side * side * (facts.number("temporal_patch_size") or 1)


def _kind(name: str, annotation: str) -> Kind:
    said = words(name)
    last = said[-1] if said else ""
    if "mask" in said or "masks" in said:
        return Kind.TRUTH if "Bool" in annotation else Kind.ONES
    if last in ("ids", "id", "idx", "index", "indices", "tokens", "token", "codes"):
        return Kind.POSITIONS if "position" in said else Kind.TOKENS
    if "Bool" in annotation:
        return Kind.TRUTH
    # Annotations of inputs are wrong now and then; what these words stand for is made of numbers.
    if _SAYING & set(said):
        return Kind.NUMBERS
    if "Long" in annotation or "Int" in annotation:
        return Kind.ONES
    if _TIME & set(said) or last in ("shapes", "sizes", "thw", "hw", "bbox", *_LENGTHS):
        return Kind.ONES
    return Kind.NUMBERS


def _index_shapes(facts: ModelFacts, name: str, kind: Kind) -> list[tuple[int, ...]]:
    if "pixel" in words(name) and kind is not Kind.POSITIONS:
        patches = _patch_shapes(facts)
        if patches:
            return [patches[0][:-1]]
        side = _image_side(facts)
        return [(BATCH, *side), (BATCH, LENGTH), (BATCH, 1, *side)]
    if _TIME & set(words(name)):
        return [(BATCH,), ()]
    if words(name)[-1] in _LENGTHS:
        return [(BATCH,), (BATCH, LENGTH)]
    if words(name)[-1] == "bbox":
        return [(BATCH, LENGTH, 4)]
    return [(BATCH, LENGTH), (BATCH,), (BATCH, LENGTH, LENGTH)]


def _number_shapes(facts: ModelFacts, name: str) -> list[tuple[int, ...]]:
    said = words(name)
    width = facts.number("hidden_size", "d_model", "embed_dim", "dim") or _first_width(facts) or 16
    states = (BATCH, LENGTH, width)
    if _IMAGE & set(said):
        return _patch_shapes(facts) + _image_shapes(facts, bool(_VIDEO & set(said)))
    if _VIDEO & set(said):
        return _image_shapes(facts, video=True)
    if _FEATURES & set(said):
        return _feature_shapes(facts)
    if _STATES & set(said):
        return [*_patch_shapes(facts), states]
    if _SIGNAL & set(said):
        return _signal_shapes(facts)
    parameter = facts.parameters.get(name)
    if parameter is not None and parameter.default is None and name != next(iter(facts.parameters)):
        # What may be left out is seldom what the first module takes.
        return [(BATCH, width), states, (BATCH,), *_weight_shapes(facts)]
    return [*_weight_shapes(facts), states, (BATCH, width), (BATCH,)]


def _image_side(facts: ModelFacts) -> tuple[int, int]:
    found = facts.sizes("image_size", "img_size", "input_size", "sample_size", "crop_size")
    side = (_SIDE, _SIDE) if found is None else (found[0], found[-1])
    return min(side[0], _LARGEST_SIDE), min(side[1], _LARGEST_SIDE)


def _image_shapes(facts: ModelFacts, video: bool) -> list[tuple[int, ...]]:
    channels = channels_of(facts) or 3
    height, width = _image_side(facts)
    frames = facts.number("num_frames", "frames_per_clip", "tubelet_size") or 2
    image = (BATCH, channels, height, width)
    clip = (BATCH, frames, channels, height, width)
    flat = (_GRID * _GRID, _patch_width(facts))
    return [clip, image, flat] if video else [image, clip, flat, (BATCH, LENGTH, flat[-1])]


def _feature_shapes(facts: ModelFacts) -> list[tuple[int, ...]]:
    bins = facts.number(
        "num_mel_bins", "n_mels", "num_mels", "feature_size", "input_feat_per_channel", "feature_projection_input_dim"
    )
    bins = bins or facts.number("input_dim", "feature_dim", "input_size") or _first_width(facts) or 16
    return [(BATCH, bins, LENGTH), (BATCH, LENGTH, bins), (BATCH, 1, LENGTH, bins), (BATCH, 1, bins, LENGTH)]


def _signal_shapes(facts: ModelFacts) -> list[tuple[int, ...]]:
    length = facts.number("context_length", "max_length", "seq_length") or LENGTH
    columns = facts.number("num_input_channels", "num_mel_bins", "input_size")
    series = [(BATCH, length), (BATCH, length, columns or 1)]
    signal = [(BATCH, _SAMPLES), (BATCH, 1, _SAMPLES)]
    return series[::-1] + signal if columns else signal + series


def _first_width(facts: ModelFacts) -> int | None:
    return next((module.in_features for module in facts.modules if isinstance(module, torch.nn.Linear)), None)


def channels_of(facts: ModelFacts) -> int | None:
    """How many channels images have, by the configuration or the first convolution."""
    said = facts.number("num_channels", "in_channels", "in_chans", "num_input_channels")
    return said or next((module.in_channels for module in facts.modules if isinstance(module, CONVOLUTIONS)), None)


def _weight_shapes(facts: ModelFacts) -> list[tuple[int, ...]]:
    """What the first module with weights takes."""
    for module in facts.modules:
        if isinstance(module, CONVOLUTIONS):
            rank = module.weight.dim() - 2
            sides = (_SIDE, 32, 28, 224) if rank < 3 else (16, 32)
            return [(BATCH, module.in_channels, *(side,) * rank) for side in sides]
        if isinstance(module, torch.nn.RNNBase):
            return [(BATCH, LENGTH, module.input_size)]
        if isinstance(module, torch.nn.Linear):
            return [(BATCH, module.in_features), (BATCH, LENGTH, module.in_features)]
    return []


def _has_table(facts: ModelFacts) -> bool:
    return any(isinstance(module, TABLES) for module in facts.modules)


def _looks_up_first(facts: ModelFacts) -> bool:
    weighted = (m for m in facts.modules if next(m.parameters(recurse=False), None) is not None)
    return isinstance(next(weighted, None), TABLES)
