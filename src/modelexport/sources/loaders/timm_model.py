"""Load timm models by name: `timm:resnet18`, or `timm:resnet18.a1_in1k` for specific weights."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from modelexport.errors import ModelSourceError
from modelexport.sources.loaders.hub import fetch, find_on_hub
from modelexport.sources.loaders.libraries import quiet, require
from modelexport.sources.loaders.sourced_model import LoadOptions, SourcedModel, building

_RANDOM_WEIGHTS = "--random-weights initializes the weights at random"
_WEIGHTS = ("model.safetensors", "open_clip_model.safetensors")


def load_timm(reference: str, name: str, options: LoadOptions) -> SourcedModel:
    """Load a timm model with its pretrained weights, and an image of its input size."""
    options.only(reference, ("revision", "dtype", "random_weights"))
    dtype = options.torch_dtype()
    timm = require("timm", "timm", reference)
    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), n=3, cutoff=0.4)
        likely = f": did you mean {' or '.join(close)}?" if close else ""
        raise ModelSourceError(f"timm {timm.__version__} has no model {name!r}{likely}")
    weights = [] if options.random_weights else [_find_weights(timm, reference, name, options.revision)]
    with quiet(), building(reference, options.revision, weights):
        # timm reads this file only: its other sources of weights include pickles.
        source = [{"file": str(file), "custom_load": False, "hf_hub_id": None, "url": None} for file in weights]
        overlay = {"pretrained_cfg_overlay": source[0]} if source else {}
        model = timm.create_model(name, pretrained=bool(source), **overlay).to(dtype=dtype).eval()
        image = torch.randn(1, *model.pretrained_cfg["input_size"]).to(dtype)
    return SourcedModel(model, (image,), lambda: _ImageProcessor(timm, model))


class _ImageProcessor:
    """timm's preprocessing of images, with the call signature of transformers' image processors."""

    def __init__(self, timm: Any, model: torch.nn.Module) -> None:
        self._transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
        self._argument = next(iter(inspect.signature(model.forward).parameters))
        self._dtype = next(model.parameters()).dtype

    def __call__(self, images: Sequence[Any], return_tensors: str = "pt") -> dict[str, torch.Tensor]:
        return {self._argument: torch.stack([self._transform(image) for image in images]).to(self._dtype)}


def _find_weights(timm: Any, reference: str, name: str, revision: str | None) -> Path:
    try:
        known = timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        raise ModelSourceError(f"{reference}: {error}") from error
    place = getattr(known, "hf_hub_id", None)
    if place is None:
        raise ModelSourceError(
            f"timm names no weights of {name!r} on the HuggingFace hub: timm.list_pretrained() lists the "
            f"names with weights; {_RANDOM_WEIGHTS}"
        )
    own = known.hf_hub_filename
    names = (own,) if own is not None and own.endswith(".safetensors") else _WEIGHTS
    repository = find_on_hub(reference, place, revision, advice=_RANDOM_WEIGHTS, marker=names[0])
    return fetch(repository, repository.weights_file(names))
