"""The first guess of an argument: from its name and annotation, the configuration and the modules of the model."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import re
from typing import Any

import torch

from modelexport.errors import FileFormatError
from modelexport.graph import ELEMENT_TYPES
from modelexport.sources.inputs.synthesis.model_facts import CONVOLUTIONS, EMBEDDINGS, ModelFacts
from modelexport.sources.inputs.synthesis.tensor_spec import Kind, Proposal, TensorSpec
from modelexport.storage import ModelFile

BATCH = 2
# A number that is rarely a size of anything else: where an error contains it, it is this axis.
LENGTH = 7
_SIDE = 64
_SIDE_OF_VOLUME = 16
_MAX_SIDE = 1024
_SAMPLES = 4096
_GRID = 4
# The words that model libraries agree on for what an argument contains.
_VIDEO = frozenset(["video", "videos"])
_IMAGE = frozenset(["pixel", "pixels", "image", "images", "img", "sample"]) | _VIDEO
_FEATURES = frozenset(["features", "mel", "spectrogram"])
_STATES = frozenset(["embeds", "states", "embeddings", "hidden", "feats"])
_SIGNAL = frozenset(["values", "audio", "waveform", "wav", "speech"])
_TIME = frozenset(["timestep", "timesteps"])
_FLOATS = _IMAGE | _FEATURES | _STATES | _SIGNAL
_INDICES = frozenset(["ids", "id", "idx", "index", "indices", "tokens", "token", "codes"])
_COUNTS = frozenset(["shapes", "sizes", "thw", "hw", "bbox", "lengths", "length", "lens"])


_TYPES: dict[object, torch.dtype] = {element: getattr(torch, name) for name, element in ELEMENT_TYPES.items()}


def guess(facts: ModelFacts, name: str) -> Any:
    """What the argument `name` is most likely to be."""
    parameter = facts.parameters.get(name)
    plain = _guess_plain_value(parameter)
    if plain is not None:
        return plain
    annotation = "" if parameter is None or parameter.annotation is parameter.empty else str(parameter.annotation)
    grid = _guess_grid(name)
    if grid is not None:
        return grid
    kind = _guess_kind(name, annotation)
    return _guess_floats(facts, name) if kind is Kind.FLOATS else _guess_integers(facts, name, kind)


def guess_for_file(facts: ModelFacts, file: ModelFile) -> Proposal:
    """The inputs that an ONNX file of the model has, with their types and fixed sizes; other sizes are guessed."""
    inputs = [value for value in file.model.graph.inputs if not value.is_initializer()]
    names = {value.name: value.name or "" for value in inputs}
    # A damaged sidecar is not needed here.
    with contextlib.suppress(FileFormatError):
        calls = file.document.calls if file.document is not None else ()
        names |= {tensor.tensor: tensor.name for call in calls if not call.path for tensor in call.inputs}
    if not any(name.partition(".")[0] in facts.parameters for name in names.values()):
        # Another exporter named them.
        names = dict(zip(names, facts.parameters, strict=False))
    sizes: dict[str, int] = {}
    found: Proposal = {}
    for value in inputs:
        name, dtype = names.get(value.name, ""), _TYPES.get(value.dtype)
        if name.partition(".")[0] not in facts.parameters or dtype is None or value.shape is None:
            continue
        guessed = guess(facts, name)
        spec = guessed if isinstance(guessed, TensorSpec) else TensorSpec(())
        usual = zip(value.shape, (*spec.shape, *(LENGTH,) * len(value.shape)), strict=False)
        # Axes of one name have one size.
        shape = tuple(size if isinstance(size, int) else sizes.setdefault(str(size), other) for size, other in usual)
        kind = Kind.TOKENS if spec.kind is Kind.FLOATS and not dtype.is_floating_point else spec.kind
        found[name] = dataclasses.replace(spec, shape=shape, kind=kind, dtype=dtype, rule="file")
    return found


def may_be_input(parameter: inspect.Parameter) -> bool:
    """Whether an argument may be an input: one with a default value, or annotated as a bool, is an option."""
    if parameter.default is not None and parameter.default is not parameter.empty:
        return False
    if parameter.annotation is parameter.empty or "Tensor" in str(parameter.annotation):
        return True
    plain = _guess_plain_value(parameter)
    # Annotations are wrong now and then: a box is a tensor, whatever they say.
    return bool(plain) or (plain is None and _words(parameter.name)[-1] in _COUNTS)


def channels_of(facts: ModelFacts) -> int | None:
    """The number of channels of an image, by the configuration or the first convolution."""
    configured = facts.number("num_channels", "in_channels", "in_chans", "num_input_channels")
    return configured or next((m.in_channels for m in facts.modules if isinstance(m, CONVOLUTIONS)), None)


def shape_for_convolution(module: Any) -> tuple[int, ...]:
    """A shape that a convolution, one of `CONVOLUTIONS`, takes."""
    rank = module.weight.dim() - 2
    return (BATCH, module.in_channels, *(_SIDE if rank < 3 else _SIDE_OF_VOLUME,) * rank)


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[_\W]+|(?<=[a-z])(?=[A-Z])", name.lower()) if word] or [""]


def _guess_plain_value(parameter: inspect.Parameter | None) -> Any:
    """A value for an argument that is not a tensor, by its annotation; None where it may be a tensor."""
    if parameter is None or parameter.annotation is parameter.empty:
        return None
    annotation = parameter.annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    text = str(annotation) if text in ("Optional", "Union", "List", "list", "UnionType", "") else text
    text = re.sub(r"typing\.|Optional|None|[\s|\[\]]", "", text).lower()
    if text in ("bool", "int", "float"):
        return {"bool": False, "int": 1, "float": 1.0}[text]
    # Lists of sizes in each direction, whose product is the length of a sequence.
    sizes = re.search(r"(?P<nested>list)?listtuple(?P<ints>int(?:,int)+)", text)
    if sizes is None:
        return None
    size = (*(1,) * sizes["ints"].count(","), LENGTH)
    return [[size] if sizes["nested"] else size] * BATCH


def _guess_kind(name: str, annotation: str) -> Kind:
    words = _words(name)
    if "mask" in words or "masks" in words:
        return Kind.BOOLS if "Bool" in annotation else Kind.ONES
    if words[-1] in _INDICES:
        return Kind.POSITIONS if "position" in words else Kind.TOKENS
    if "Bool" in annotation:
        return Kind.BOOLS
    # Annotations of inputs are wrong now and then; these words stand for floats.
    if _FLOATS & set(words):
        return Kind.FLOATS
    if "Long" in annotation or "Int" in annotation or _TIME & set(words) or words[-1] in _COUNTS:
        return Kind.ONES
    return Kind.FLOATS


def _guess_integers(facts: ModelFacts, name: str, kind: Kind) -> TensorSpec:
    words = _words(name)
    has_embedding = any(isinstance(module, EMBEDDINGS) for module in facts.modules)
    if words[-1] == "ids" and kind is not Kind.ONES and facts.axes is not None and not has_embedding:
        # No embedding to look them up in: they are positions, with several coordinates each.
        return TensorSpec((LENGTH, facts.axes), rule="coordinates")
    patches = _patch_shape(facts) if "pixel" in words else None
    if patches is not None and kind is not Kind.POSITIONS:
        return TensorSpec(patches[:-1], kind, rule="mask_of_patches")
    if _TIME & set(words) or words[-2:] == ["class", "labels"]:
        return TensorSpec((BATCH,), kind, rule="timestep" if _TIME & set(words) else "label")
    grid = _required_grid(facts)
    if grid is not None and words[-1] == "sizes":
        return TensorSpec(grid.shape[:1], kind, rule="sizes_of_grids")
    upper_bound = facts.vocabulary if kind is Kind.TOKENS else 2
    return TensorSpec((BATCH, LENGTH), kind, upper_bound, rule=kind.value)


def _guess_floats(facts: ModelFacts, name: str) -> TensorSpec:
    words = set(_words(name))
    width = facts.number("hidden_size", "d_model", "embed_dim", "dim") or _first_width(facts) or 16
    patches = _patch_shape(facts) if words & (_IMAGE | _STATES) else None
    if patches is not None:
        return TensorSpec(patches, rule="patches")
    if words & _IMAGE:
        return _guess_image(facts, is_video=bool(words & _VIDEO))
    if words & _FEATURES:
        return TensorSpec((BATCH, _feature_size(facts), LENGTH), rule="features")
    if words & _STATES:
        return TensorSpec((BATCH, LENGTH, width), rule="states")
    if words & _SIGNAL:
        return _guess_signal(facts)
    # The name says nothing: the first module with weights may.
    first = next((m for m in facts.modules if next(m.parameters(recurse=False), None) is not None), None)
    if isinstance(first, EMBEDDINGS):
        return TensorSpec((BATCH, LENGTH), Kind.TOKENS, facts.vocabulary, rule="first_embedding")
    parameter = facts.parameters.get(name)
    if parameter is not None and parameter.default is None and name != next(iter(facts.parameters)):
        # An optional argument is seldom the input of the first module.
        return TensorSpec((BATCH, width), rule="optional")
    shape = _input_of_first_module(facts)
    if shape is not None:
        return TensorSpec(shape, rule="first_module")
    return TensorSpec((BATCH, LENGTH, width), rule="default")


def _guess_grid(name: str) -> TensorSpec | None:
    """How many patches images have in each direction, where they are given as lists of patches."""
    words = _words(name)
    if words[-1] == "thw":
        return TensorSpec((1, 3), Kind.ONES, rows=((1, _GRID, _GRID),), rule="grid")
    if words[-1] == "hw" or words[-2:] == ["spatial", "shapes"]:
        return TensorSpec((BATCH, 2), Kind.ONES, rows=((_GRID, _GRID),) * BATCH, rule="grid")
    return None


def _required_grid(facts: ModelFacts) -> TensorSpec | None:
    grids = [_guess_grid(name) for name, parameter in facts.parameters.items() if parameter.default is parameter.empty]
    return next((spec for spec in grids if spec is not None), None)


def _patch_shape(facts: ModelFacts) -> tuple[int, ...] | None:
    """The shape of images as lists of patches, where a required argument tells how the patches lie."""
    grid = _required_grid(facts)
    if grid is None:
        return None
    channels = facts.number("in_channels", "num_channels", "in_chans") or 3
    side = facts.number("patch_size") or 1
    width = channels * side * side * (facts.number("temporal_patch_size") or 1)
    patches = math.prod(grid.rows[0])
    return (patches, width) if len(grid.rows) == 1 else (BATCH, patches, width)


def _guess_image(facts: ModelFacts, is_video: bool) -> TensorSpec:
    found = facts.sizes("image_size", "img_size", "input_size", "sample_size", "crop_size") or (_SIDE, _SIDE)
    image = (channels_of(facts) or 3, min(found[0], _MAX_SIDE), min(found[-1], _MAX_SIDE))
    if is_video:
        frames = facts.number("num_frames", "frames_per_clip", "tubelet_size") or 2
        return TensorSpec((BATCH, frames, *image), rule="video")
    return TensorSpec((BATCH, *image), rule="image")


def _feature_size(facts: ModelFacts) -> int:
    bins = ("num_mel_bins", "n_mels", "num_mels", "feature_size", "input_feat_per_channel")
    return (
        facts.number(*bins, "feature_projection_input_dim", "input_dim", "feature_dim", "input_size")
        or _first_width(facts)
        or 16
    )


def _guess_signal(facts: ModelFacts) -> TensorSpec:
    columns = facts.number("num_input_channels", "num_mel_bins", "input_size")
    if columns is None:
        return TensorSpec((BATCH, _SAMPLES), rule="signal")
    length = facts.number("context_length", "max_length", "seq_length") or LENGTH
    return TensorSpec((BATCH, length, columns), rule="series")


def _first_width(facts: ModelFacts) -> int | None:
    return next((module.in_features for module in facts.modules if isinstance(module, torch.nn.Linear)), None)


def _input_of_first_module(facts: ModelFacts) -> tuple[int, ...] | None:
    """The input shape of the first convolution, recurrent or linear layer."""
    for module in facts.modules:
        if isinstance(module, CONVOLUTIONS):
            return shape_for_convolution(module)
        if isinstance(module, torch.nn.RNNBase):
            return (BATCH, LENGTH, module.input_size)
        if isinstance(module, torch.nn.Linear):
            return (BATCH, module.in_features)
    return None
