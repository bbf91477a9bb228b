"""Load transformers models from a folder, the hub or its cache: safetensors only, remote code only if allowed."""

from __future__ import annotations

import difflib
import functools
import importlib
from pathlib import Path
from typing import Any

from modelexport.errors import InputError, ModelSourceError
from modelexport.sources.loaders.hub import SAFE_WEIGHTS, Repository, find_on_hub, folder_repository
from modelexport.sources.loaders.libraries import explain_load_error, quiet, require
from modelexport.sources.loaders.sourced_model import LoadOptions, SourcedModel, building, notes_on_missing
from modelexport.torch_support.transformers_private import implementations_of, model_from_config, models_by_config

_AUTO_PREFIX = "Auto"
_SUPPORTED_OPTIONS = ("task", "revision", "trust_remote_code", "dtype", "attn_implementation", "random_weights")
_CONFIG = "config.json"


def choose_class(reference: str, config: Any, task: str | None) -> Any:
    """The model class or auto class of transformers for a configuration."""
    if task is not None:
        return _class_for_task(reference, config, task)
    import transformers

    for name in filter(lambda name: isinstance(name, str), getattr(config, "architectures", None) or ()):
        found = _known_model_class(name)
        if found is not None:
            return found
        auto_class = _auto_class_of(config, name)
        if auto_class is not None:
            return auto_class
    return transformers.AutoModel


def refuse_code(reference: str, config: dict[str, Any], location: str) -> None:
    """Refuse a configuration that needs code from the model's repository.

    A model type and class of transformers itself need no such code, even if the configuration has an `auto_map`.
    """
    from transformers import CONFIG_MAPPING

    own = config.get("auto_map")
    if not isinstance(own, dict) or not own:
        return
    architectures = config.get("architectures") or ()
    known_config = config.get("model_type") in CONFIG_MAPPING
    unknown = [name for name in architectures if isinstance(name, str) and _known_model_class(name) is None]
    if known_config and not unknown:
        return
    what = ", ".join(sorted({str(code) for code in own.values()}))
    raise ModelSourceError(
        f"{reference} needs Python code from its repository ({what}), which was not run: read it at {location}, and "
        "allow it with --trust-remote-code"
    )


def _known_model_class(name: str) -> Any | None:
    import transformers

    found = getattr(transformers, name, None) if name.isidentifier() else None
    return found if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel) else None


def _auto_class_of(config: Any, architecture: str) -> Any | None:
    """The auto class under which the configuration registers a class of its own."""
    own = getattr(config, "auto_map", None) or {}
    for auto_name, code in own.items():
        if isinstance(code, str) and code.rpartition(".")[2] == architecture:
            return _auto_class(auto_name)
    return None


def _auto_class(name: str) -> Any | None:
    import transformers

    found = getattr(transformers, name, None) if name.isidentifier() else None
    # Only auto classes of models have a table from configurations to model classes.
    return found if isinstance(found, type) and models_by_config(found) is not None else None


def _class_for_task(reference: str, config: Any, task: str) -> Any:
    named = _auto_class(task) if task.startswith(_AUTO_PREFIX) else None
    candidates = _classes_by_task().get(task, ()) if named is None else (named,)
    if not candidates:
        autos = [name for name in dir(importlib.import_module("transformers")) if name.startswith(_AUTO_PREFIX)]
        known = [*_classes_by_task(), *(name for name in autos if _auto_class(name) is not None)]
        close = difflib.get_close_matches(task, known, n=3, cutoff=0.4)
        likely = f"did you mean {' or '.join(close)}? " if close else ""
        raise InputError(
            f"--task {task!r} is neither a task nor an auto class of transformers: {likely}The tasks are "
            f"{', '.join(_classes_by_task())}; auto classes are AutoModelForCausalLM and the like"
        )
    for candidate in candidates:
        if _supports(candidate, config):
            return candidate
    others = [name for name, classes in _classes_by_task().items() if any(_supports(one, config) for one in classes)]
    raise InputError(
        f"--task {task}: transformers has no class for this task for {reference}, a {type(config).__name__}; "
        f"it has one for {', '.join(others) or 'AutoModel only'}"
    )


def _supports(auto_class: Any, config: Any) -> bool:
    own = getattr(config, "auto_map", None) or {}
    return type(config) in models_by_config(auto_class) or auto_class.__name__ in own


def _classes_by_task() -> dict[str, tuple[Any, ...]]:
    registry = importlib.import_module("transformers.pipelines").PIPELINE_REGISTRY
    return {task: tuple(registry.check_task(task)[1]["pt"]) for task in registry.get_supported_tasks()}


def load_hub_model(reference: str, options: LoadOptions, other_forms: str) -> SourcedModel:
    """Load a model by its id on the HuggingFace hub, from the cache if it is there."""
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
    """Load a model from a folder that `save_pretrained` wrote."""
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
    wanted: dict[str, Any] = {"dtype": dtype, "attn_implementation": options.attn_implementation}
    settings = {name: value for name, value in wanted.items() if value is not None}
    notes: tuple[str, ...] = ()
    with building(repository.reference, options.revision, _weights(repository)):
        model_class = choose_class(repository.reference, config, options.task)
        if not options.random_weights:
            model, info = model_class.from_pretrained(
                repository.location,
                config=config,
                use_safetensors=True,
                trust_remote_code=options.trust_remote_code,
                output_loading_info=True,
                **repository.at_revision(),
                **settings,
            )
            notes = notes_on_missing(repository.reference, model, info["missing_keys"])
        elif hasattr(model_class, "from_config"):
            model = model_class.from_config(config, trust_remote_code=options.trust_remote_code, **settings)
        else:
            model = model_from_config(model_class, config, settings)
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
    try:
        # By the name that it has in all releases.
        from transformers import AutoConfig, PretrainedConfig

        written, _ = PretrainedConfig.get_config_dict(repository.location, **repository.at_revision())
        if not options.trust_remote_code:
            code = f"https://huggingface.co/{repository.reference}" if repository.on_hub else repository.location
            refuse_code(repository.reference, written, code)
        _refuse_unknown_type(repository, written)
        config = AutoConfig.from_pretrained(
            repository.location, trust_remote_code=options.trust_remote_code, **repository.at_revision()
        )
    except Exception as error:
        raise explain_load_error(repository.reference, options.revision, error, weights=_weights(repository)) from error
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


def _weights(repository: Repository) -> list[Path]:
    files = (Path(repository.location, name) for name in sorted(repository.files))
    return [path for path in files if path.suffix == ".safetensors" and path.is_file()]


def _load_processor(repository: Repository, options: LoadOptions) -> Any | None:
    """Load the tokenizer, image processor, feature extractor or processor of the model; None if it has none."""
    try:
        with quiet():
            from transformers import AutoProcessor

            found = AutoProcessor.from_pretrained(
                repository.location, trust_remote_code=options.trust_remote_code, **repository.at_revision()
            )
    except Exception as error:
        if not _processor_files(repository):
            return None
        raise explain_load_error(repository.reference, options.revision, error, weights=_weights(repository)) from error
    # Without a file for it, transformers creates an empty processor.
    own = set((getattr(found, "vocab_files_names", None) or {}).values())
    return found if _processor_files(repository) or own & repository.files else None


def _processor_files(repository: Repository) -> set[str]:
    from transformers import utils

    names = ("PROCESSOR_NAME", "FEATURE_EXTRACTOR_NAME", "IMAGE_PROCESSOR_NAME", "VIDEO_PROCESSOR_NAME")
    known = {str(getattr(utils, name)) for name in names if hasattr(utils, name)}
    return (known | {"tokenizer_config.json", "tokenizer.json"}) & repository.files
