"""Load the model that a MODEL reference names: choose the loader for the reference."""

from __future__ import annotations

import os
from pathlib import Path

from modelexport.errors import ModelSourceError
from modelexport.sources.loaders.builtin import BUILTIN_PREFIX, build_builtin
from modelexport.sources.loaders.file_kind import existing_path, is_exported_program, refuse_file
from modelexport.sources.loaders.python_reference import load_reference
from modelexport.sources.loaders.sourced_model import DEFAULT_OPTIONS, LoadOptions, SourcedModel

_TIMM_PREFIX = "timm:"
_DIFFUSERS_PREFIX = "diffusers:"
_FORMS = (
    "a HuggingFace folder or hub id, package.module:factory, file.py:factory, timm:NAME, diffusers:FOLDER#unet, "
    f"a .pt2 file, or {BUILTIN_PREFIX}bert-tiny for the built-in model"
)


def load_model(reference: str, options: LoadOptions = DEFAULT_OPTIONS) -> SourcedModel:
    """Load the model that a reference names.

    Raises:
        InputError: An option does not apply to this kind of reference.
        ModelSourceError: The reference does not lead to a model.
    """
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
