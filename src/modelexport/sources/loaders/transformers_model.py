"""Load transformers models from a folder, the hub or its cache: safetensors only, remote code only if allowed."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from modelexport.errors import ModelExportError, ModelSourceError
from modelexport.sources.loaders.hub import SAFE_WEIGHTS, Repository, find_on_hub, folder_repository
from modelexport.sources.loaders.library_logging import quiet
from modelexport.sources.loaders.load_errors import explain_load_error, require
from modelexport.sources.loaders.model_class import choose_class, refuse_code
from modelexport.sources.loaders.sourced_model import SEED, LoadOptions, SourcedModel, notes_on_missing, size_limit
from modelexport.torch_support.transformers_private import implementations_of, model_from_config

_SUPPORTED_OPTIONS = ("task", "revision", "trust_remote_code", "dtype", "attn_implementation", "random_weights")
_CONFIG = "config.json"


def load_hub_model(reference: str, options: LoadOptions, other_forms: str) -> SourcedModel:
    """Load a model by its id on the HuggingFace hub, from the cache if it is there.

    Raises:
        ModelSourceError: The model does not exist, or cannot be loaded.
    """
    require("transformers", "hf", f"{reference!r} is not a file, folder or package.module:factory; as a hub id it")
    with quiet():
        repository = find_on_hub(
            reference,
            reference,
            options.revision,
            advice=f"no file or folder has this name either: MODEL is {other_forms}",
        )
        return _load(repository, options)


def load_folder(reference: str, folder: Path, options: LoadOptions) -> SourcedModel:
    """Load a model from a folder that `save_pretrained` wrote.

    Raises:
        ModelSourceError: The folder is not one of save_pretrained, or the model cannot be loaded.
    """
    options.only(reference, [name for name in _SUPPORTED_OPTIONS if name != "revision"])
    require("transformers", "hf", reference)
    with quiet():
        return _load(folder_repository(reference, folder), options)


def _load(repository: Repository, options: LoadOptions) -> SourcedModel:
    dtype = options.torch_dtype()
    _refuse_folder_without_configuration(repository)
    config = _load_config(repository, options)
    if not options.random_weights:
        explicit = getattr(config, "transformers_weights", None)
        repository.weights_file((str(explicit),) if explicit else SAFE_WEIGHTS)
    wanted = {"dtype": dtype, "attn_implementation": options.attn_implementation}
    settings = {name: value for name, value in wanted.items() if value is not None}
    notes: tuple[str, ...] = ()
    try:
        model_class = choose_class(repository.reference, config, options.task)
        with torch.random.fork_rng(devices=[]), size_limit(repository.reference):
            torch.manual_seed(SEED)
            if options.random_weights:
                model = _build(model_class, config, options, settings)
            else:
                model, notes = _read(model_class, config, repository, options, settings)
    except Exception as error:
        raise _explain(repository, options, error) from error
    return SourcedModel(model.eval(), None, functools.partial(_load_processor, repository, options), notes)


def _refuse_folder_without_configuration(repository: Repository) -> None:
    if _CONFIG in repository.files:
        return
    name = repository.reference
    if "model_index.json" in repository.files:
        raise ModelSourceError(f"{name} is a diffusers pipeline: name one of its models, as diffusers:{name}#unet")
    if "adapter_config.json" in repository.files:
        raise ModelSourceError(
            f"{name} is an adapter without its model: merge it into the model with peft, and save the result"
        )
    raise ModelSourceError(f"{name} has no {_CONFIG}, so it is not a HuggingFace model")


def _load_config(repository: Repository, options: LoadOptions) -> Any:
    from transformers import AutoConfig, PreTrainedConfig

    where = {"revision": repository.revision} if repository.on_hub else {}
    try:
        written, _ = PreTrainedConfig.get_config_dict(repository.location, **where)
        if not options.trust_remote_code:
            code = f"https://huggingface.co/{repository.reference}" if repository.on_hub else repository.location
            refuse_code(repository.reference, written, code)
        _refuse_unknown_type(repository, written)
        config = AutoConfig.from_pretrained(repository.location, trust_remote_code=options.trust_remote_code, **where)
    except Exception as error:
        raise _explain(repository, options, error) from error
    _refuse_kernels(repository, config, options)
    return config


def _refuse_unknown_type(repository: Repository, written: dict[str, Any]) -> None:
    from transformers import CONFIG_MAPPING, __version__

    kind = written.get("model_type")
    if kind not in CONFIG_MAPPING and "AutoConfig" not in (written.get("auto_map") or {}):
        raise ModelSourceError(
            f"{repository.reference}: its {_CONFIG} has model_type {kind!r}, which transformers {__version__} does "
            "not know; a newer release may"
        )


def _refuse_kernels(repository: Repository, config: Any, options: LoadOptions) -> None:
    """transformers downloads and runs code for an attention implementation that is named like a repository."""
    asked = (options.attn_implementation, *implementations_of(config))
    for implementation in asked:
        if isinstance(implementation, str) and "/" in implementation and not options.trust_remote_code:
            raise ModelSourceError(
                f"{repository.reference}: attention implementation {implementation!r} is code from the hub, which was "
                "not downloaded: allow it with --trust-remote-code, or give --attn-implementation eager"
            )


def _build(model_class: Any, config: Any, options: LoadOptions, settings: dict[str, Any]) -> Any:
    if hasattr(model_class, "from_config"):
        return model_class.from_config(config, trust_remote_code=options.trust_remote_code, **settings)
    return model_from_config(model_class, config, settings)


def _read(
    model_class: Any, config: Any, repository: Repository, options: LoadOptions, settings: dict[str, Any]
) -> tuple[Any, tuple[str, ...]]:
    model, info = model_class.from_pretrained(
        repository.location,
        config=config,
        use_safetensors=True,
        trust_remote_code=options.trust_remote_code,
        output_loading_info=True,
        **({"revision": repository.revision} if repository.on_hub else {}),
        **settings,
    )
    return model, notes_on_missing(repository.reference, model, info["missing_keys"])


def _explain(repository: Repository, options: LoadOptions, error: Exception) -> ModelExportError:
    files = (Path(repository.location, name) for name in sorted(repository.files))
    weights = [path for path in files if path.suffix == ".safetensors" and path.is_file()]
    return explain_load_error(repository.reference, options.revision, error, weights=weights)


def _load_processor(repository: Repository, options: LoadOptions) -> Any | None:
    """Load the tokenizer, image processor, feature extractor or processor of the model; None if it has none.

    Raises:
        ModelSourceError: It cannot be loaded.
    """
    from transformers import AutoProcessor

    where = {"revision": repository.revision} if repository.on_hub else {}
    try:
        with quiet():
            found = AutoProcessor.from_pretrained(
                repository.location, trust_remote_code=options.trust_remote_code, **where
            )
    except Exception as error:
        if not _processor_files(repository):
            return None
        raise _explain(repository, options, error) from error
    # Without a file for it, transformers creates an empty processor.
    own = set((getattr(found, "vocab_files_names", None) or {}).values())
    return found if _processor_files(repository) or own & repository.files else None


def _processor_files(repository: Repository) -> set[str]:
    from transformers import utils

    names = ("PROCESSOR_NAME", "FEATURE_EXTRACTOR_NAME", "IMAGE_PROCESSOR_NAME", "VIDEO_PROCESSOR_NAME")
    known = {str(getattr(utils, name)) for name in names if hasattr(utils, name)}
    return (known | {"tokenizer_config.json", "tokenizer.json"}) & repository.files
