"""Load the model that a MODEL reference names: choose the loader for the reference."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from modelexport.errors import InputError, ModelSourceError
from modelexport.input_options import existing_path
from modelexport.sources.loaders.file_kind import is_exported_program, refuse_file
from modelexport.sources.loaders.libraries import require
from modelexport.sources.loaders.python_reference import load_reference
from modelexport.sources.loaders.sourced_model import DEFAULT_OPTIONS, LoadOptions, SourcedModel, building

BUILTIN_PREFIX = "builtin:"
_TIMM_PREFIX = "timm:"
_DIFFUSERS_PREFIX = "diffusers:"
_FORMS = (
    "a HuggingFace folder or hub id, package.module:factory, file.py:factory, timm:NAME, diffusers:FOLDER#unet, "
    f"a .pt2 file, or {BUILTIN_PREFIX}bert-tiny for the built-in model"
)


def build_builtin(reference: str) -> tuple[torch.nn.Module, Any]:
    """Build the built-in model of that name, with example inputs."""
    name = reference.removeprefix(BUILTIN_PREFIX)
    if name != "bert-tiny":
        raise ModelSourceError(f"there is no built-in model {name!r}: the only one is {BUILTIN_PREFIX}bert-tiny")
    require("transformers", "hf", reference)
    with building(reference, None):
        from transformers import BertConfig, BertModel

        config = BertConfig(
            vocab_size=1024,
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=512,
            max_position_embeddings=128,
        )
        model = BertModel(config).eval()
        tokens = torch.randint(0, config.vocab_size, (1, 16))
    return model, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def load_model(reference: str, options: LoadOptions = DEFAULT_OPTIONS) -> SourcedModel:
    """Load the model that a reference names.

    Raises:
        InputError: An option does not apply to this kind of reference.
        ModelSourceError: The reference does not lead to a model.
    """
    if not isinstance(reference, str):
        raise ModelSourceError(f"the reference is a {type(reference).__name__}: give MODEL as text: {_FORMS}")
    if not isinstance(options, LoadOptions):
        raise InputError(f"options is a {type(options).__name__}: give modelexport.LoadOptions")
    if reference.startswith(BUILTIN_PREFIX):
        options.only(reference)
        return SourcedModel(*build_builtin(reference))
    if reference.startswith(_TIMM_PREFIX):
        from modelexport.sources.loaders.timm_model import load_timm

        return load_timm(reference, reference.removeprefix(_TIMM_PREFIX), options)
    if reference.startswith(_DIFFUSERS_PREFIX):
        from modelexport.sources.loaders.diffusers_model import load_component

        return load_component(reference, reference.removeprefix(_DIFFUSERS_PREFIX), options)
    path = existing_path(reference)
    if path is not None:
        return _load_path(reference, path, options)
    if ":" in reference:
        options.only(reference)
        return load_reference(reference)
    if not reference.strip() or _is_path(reference):
        raise ModelSourceError(f"there is no file or folder {reference!r}: MODEL is {_FORMS}")
    from modelexport.sources.loaders.transformers_model import load_hub_model

    return load_hub_model(reference, options, _FORMS)


def _load_path(reference: str, path: Path, options: LoadOptions) -> SourcedModel:
    if path.is_dir():
        from modelexport.sources.loaders.transformers_model import load_folder

        return load_folder(reference, path, options)
    if not path.is_file():
        raise ModelSourceError(f"{reference} is neither a file nor a folder: MODEL is {_FORMS}")
    options.only(reference)
    if is_exported_program(path):
        from modelexport.sources.loaders.pt2 import load_exported_program

        return load_exported_program(path)
    raise refuse_file(path)


def _is_path(reference: str) -> bool:
    """Whether the reference can only be a path: hub ids are `name` or `organization/name`."""
    separators = {"/", os.sep}
    return (
        reference.startswith((".", "~", *separators))
        or reference.endswith((*separators, ".pt2", ".pt", ".pth", ".onnx", ".safetensors"))
        or "\\" in reference
        or reference.count("/") > 1
    )
