"""Load diffusers models: `diffusers:FOLDER#unet` from a pipeline, `diffusers:FOLDER` for a single model, or hub ids."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from modelexport.errors import ModelSourceError
from modelexport.input_options import existing_path
from modelexport.sources.loaders.hub import Repository, fetch, find_on_hub, folder_repository
from modelexport.sources.loaders.libraries import quiet, require
from modelexport.sources.loaders.sourced_model import LoadOptions, SourcedModel, building, notes_on_missing
from modelexport.sources.loaders.transformers_model import load_folder

_CONFIG = "config.json"
_PIPELINE = "model_index.json"
_WEIGHTS = ("diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.safetensors.index.json")
# One file or shards, without the variants in other precisions.
_WEIGHTS_FILE = re.compile(r"(diffusion_pytorch_)?model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")


def load_component(reference: str, target: str, options: LoadOptions) -> SourcedModel:
    """Load a model from a diffusers pipeline (it may be a transformers model), or a model that was saved alone."""
    diffusers = require("diffusers", "diffusers", reference)
    with quiet():
        found = _find(reference, target, options)
        written = _read_config(reference, Path(found.location, _CONFIG))
        class_name = written.get("_class_name")
        if class_name is None and "model_type" in written:
            return load_folder(reference, Path(found.location), dataclasses.replace(options, revision=None))
        options.only(reference, ("revision", "dtype", "random_weights"))
        with building(reference, options.revision):
            model_class = getattr(diffusers, str(class_name), None)
            base = diffusers.ModelMixin
        if not isinstance(model_class, type) or not issubclass(model_class, base):
            raise ModelSourceError(
                f"{reference}: its {_CONFIG} names class {class_name!r}, which is not a model class of "
                f"diffusers {diffusers.__version__}"
            )
        return _load(found, model_class, written, options)


def _load(found: Repository, model_class: Any, written: dict[str, Any], options: LoadOptions) -> SourcedModel:
    dtype = options.torch_dtype()
    notes: tuple[str, ...] = ()
    if not options.random_weights:
        found.weights_file(_WEIGHTS)
    with building(found.reference, options.revision, sorted(Path(found.location).glob("*.safetensors"))):
        if options.random_weights:
            model = model_class.from_config(written).to(dtype=dtype)
        else:
            model, info = model_class.from_pretrained(
                found.location, use_safetensors=True, local_files_only=True, output_loading_info=True, torch_dtype=dtype
            )
            notes = notes_on_missing(found.reference, model, info["missing_keys"])
    return SourcedModel(model.eval(), notes=notes)


def _find(reference: str, target: str, options: LoadOptions) -> Repository:
    """The folder with the configuration and the weights of one model."""
    place, hash_sign, component = target.rpartition("#")
    if not hash_sign or existing_path(target) is not None:
        place, component = target, ""
    if component and Path(component).name != component:
        raise ModelSourceError(f"{reference}: {component!r} is not the name of a model in a pipeline, such as unet")
    folder = existing_path(place)
    if folder is not None:
        options.only(reference, [field.name for field in dataclasses.fields(options) if field.name != "revision"])
        inside = {path.parent.name for path in folder.glob(f"*/{_CONFIG}")}
        _check_component_exists(reference, place, component, (folder / component / _CONFIG).is_file(), inside)
        return folder_repository(reference, folder / component)
    prefix = f"{component}/" if component else ""
    advice = "no folder has this name either: write diffusers:FOLDER#unet"
    repository = find_on_hub(reference, place, options.revision, advice=advice, marker=f"{prefix}{_CONFIG}")
    if not repository.on_hub:
        return repository
    inside = {name.partition("/")[0] for name in repository.files if name.endswith(f"/{_CONFIG}")}
    _check_component_exists(reference, place, component, f"{prefix}{_CONFIG}" in repository.files, inside)
    return _downloaded(repository, prefix, weights=not options.random_weights)


def _check_component_exists(reference: str, place: str, component: str, exists: bool, inside: set[str]) -> None:
    if exists:
        return
    models = ", ".join(f"diffusers:{place}#{name}" for name in sorted(inside))
    what = f"has no model {component!r}" if component else "is not a single model"
    raise ModelSourceError(
        f"{reference} {what}: its models are {models}" if models else f"{reference}: it has no {_CONFIG}"
    )


def _downloaded(repository: Repository, prefix: str, *, weights: bool) -> Repository:
    config = fetch(repository, f"{prefix}{_CONFIG}")
    if weights:
        for name in sorted(repository.files):
            if name.startswith(prefix) and _WEIGHTS_FILE.fullmatch(name.removeprefix(prefix)):
                fetch(repository, name)
    return folder_repository(repository.reference, config.parent)


def _read_config(reference: str, path: Path) -> dict[str, Any]:
    try:
        written = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelSourceError(f"{reference}: {path} cannot be read: {error}") from error
    if not isinstance(written, dict):
        raise ModelSourceError(f"{reference}: {path} is not a configuration: it must be a JSON object")
    return written
