"""Models of transformers, from a folder, the hub or its cache: safetensors only, and no code unless it is allowed."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from modelexport.errors import ModelExportError, ModelSourceError
from modelexport.sources.extras import require
from modelexport.sources.hub import Repository, causes, explain_hub_error, find_on_hub, folder_repository
from modelexport.sources.model_class import choose_class, refuse_code
from modelexport.sources.sourced_model import SEED, LoadOptions, SourcedModel

_TAKEN = ("task", "revision", "trust_remote_code", "dtype", "attn_implementation", "random_weights")
_CONFIG = "config.json"
_SHOWN_NAMES = 3
_NO_CONVERSION = "DISABLE_SAFETENSORS_CONVERSION"


def load_hub_model(reference: str, options: LoadOptions, other_forms: str) -> SourcedModel:
    """A model by its id on the HuggingFace hub, from the cache where it has it.

    Raises:
        ModelSourceError: There is no such model, or it cannot be loaded.
    """
    require("transformers", "hf", f"{reference!r} is no file, folder or package.module:factory here; as a hub id it")
    with _quiet():
        repository = find_on_hub(reference, options.revision, other_forms)
        return _load(repository, options)


def load_folder(reference: str, folder: Path, options: LoadOptions) -> SourcedModel:
    """A model from a folder as `save_pretrained` writes it.

    Raises:
        ModelSourceError: It is no such folder, or the model cannot be loaded.
    """
    options.only(reference, [name for name in _TAKEN if name != "revision"])
    require("transformers", "hf", reference)
    with _quiet():
        return _load(folder_repository(reference, folder), options)


def _load(repository: Repository, options: LoadOptions) -> SourcedModel:
    dtype = options.torch_dtype()
    _refuse_folder_without_configuration(repository)
    config = _load_config(repository, options)
    if not options.random_weights:
        explicit = getattr(config, "transformers_weights", None)
        repository.refuse_without_weights(*(((str(explicit),),) if explicit else ()))
    wanted = {"dtype": dtype, "attn_implementation": options.attn_implementation}
    settings = {name: value for name, value in wanted.items() if value is not None}
    model_class = choose_class(repository.reference, config, options.task)
    notes: tuple[str, ...] = ()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            if options.random_weights:
                model = _build(model_class, config, options, settings)
            else:
                model, notes = _read(model_class, config, repository, options, settings)
    except ModelExportError:
        raise
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
            f"{name} is an adapter without its model: merge it into the model with peft, and save that"
        )
    raise ModelSourceError(f"{name} has no {_CONFIG}, so it is no HuggingFace model")


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
    except ModelExportError:
        raise
    except Exception as error:
        raise _explain(repository, options, error) from error
    _refuse_kernels(repository, config, options)
    return config


def _refuse_unknown_type(repository: Repository, written: dict[str, Any]) -> None:
    from transformers import CONFIG_MAPPING, __version__

    kind = written.get("model_type")
    if kind not in CONFIG_MAPPING and "AutoConfig" not in (written.get("auto_map") or {}):
        raise ModelSourceError(
            f"{repository.reference}: its {_CONFIG} says model_type {kind!r}, which transformers {__version__} does "
            "not know; a newer transformers may"
        )


def _refuse_kernels(repository: Repository, config: Any, options: LoadOptions) -> None:
    """An implementation that is named like a repository is code that transformers fetches from the hub and runs."""
    asked = (options.attn_implementation, *_implementations(config))
    for implementation in asked:
        if isinstance(implementation, str) and "/" in implementation and not options.trust_remote_code:
            raise ModelSourceError(
                f"{repository.reference}: attention implementation {implementation!r} is code from the hub, which was "
                "not fetched: allow it with --trust-remote-code, or give --attn-implementation eager"
            )


def _implementations(config: Any) -> Iterator[Any]:
    for name in ("_attn_implementation", "_experts_implementation"):
        found = getattr(config, name, None)
        yield from found.values() if isinstance(found, dict) else (found,)


def _build(model_class: Any, config: Any, options: LoadOptions, settings: dict[str, Any]) -> Any:
    if hasattr(model_class, "from_config"):
        return model_class.from_config(config, trust_remote_code=options.trust_remote_code, **settings)
    # What auto classes call too; a plain call of the class would leave the settings out.
    return model_class._from_config(config, **settings)


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
    made_up = sorted(info["missing_keys"])
    if not made_up:
        return model, ()
    name = type(model).__name__
    if len(made_up) >= len(model.state_dict()):
        raise ModelSourceError(
            f"{repository.reference}: none of its weights is one of {name}'s: give the --task that it was made for"
        )
    shown = ", ".join(made_up[:_SHOWN_NAMES]) + (", ..." if len(made_up) > _SHOWN_NAMES else "")
    return model, (f"{len(made_up)} weights of {name} are not in {repository.reference} and were made up: {shown}",)


def _explain(repository: Repository, options: LoadOptions, error: Exception) -> ModelSourceError:
    name = repository.reference
    for cause in causes(error):
        if type(cause).__name__ == "SafetensorError":
            broken = ", ".join(_broken_weights(repository)) or "a weights file"
            return ModelSourceError(
                f"{name}: {broken} is no whole safetensors file ({cause}): get it again, or save it again"
            )
        if isinstance(cause, json.JSONDecodeError | UnicodeDecodeError):
            return ModelSourceError(f"{name}: a JSON file of it cannot be read: {cause}")
        if isinstance(cause, ImportError):
            return ModelSourceError(f"{name} needs a package that is not installed: {' '.join(str(cause).split())}")
    return explain_hub_error(name, options.revision, error)


def _broken_weights(repository: Repository) -> list[str]:
    from safetensors import SafetensorError, safe_open

    broken = []
    for name in sorted(repository.files):
        path = Path(repository.location, name)
        if path.suffix == ".safetensors" and path.is_file():
            try:
                with safe_open(path, framework="pt"):
                    pass
            except (SafetensorError, OSError):
                broken.append(name)
    return broken


def _load_processor(repository: Repository, options: LoadOptions) -> Any | None:
    """The tokenizer, image processor, feature extractor or processor that came with the model.

    Raises:
        ModelSourceError: There is one, and it cannot be loaded.
    """
    from transformers import AutoProcessor

    where = {"revision": repository.revision} if repository.on_hub else {}
    try:
        with _quiet():
            found = AutoProcessor.from_pretrained(
                repository.location, trust_remote_code=options.trust_remote_code, **where
            )
    except Exception as error:
        if not _processor_files(repository):
            return None
        raise _explain(repository, options, error) from error
    # Where no file belongs to it, transformers makes an empty one.
    own = set((getattr(found, "vocab_files_names", None) or {}).values())
    return found if _processor_files(repository) or own & repository.files else None


def _processor_files(repository: Repository) -> set[str]:
    from transformers import utils

    names = ("PROCESSOR_NAME", "FEATURE_EXTRACTOR_NAME", "IMAGE_PROCESSOR_NAME", "VIDEO_PROCESSOR_NAME")
    known = {str(getattr(utils, name)) for name in names if hasattr(utils, name)}
    return (known | {"tokenizer_config.json", "tokenizer.json"}) & repository.files


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps transformers' logs and bars off the terminal: what matters comes back as errors and notes.

    Also keeps it from asking the hub to convert pickle weights, which it does in the name of the user.
    """
    from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    libraries = (logging, hub_logging)
    verbosity = [library.get_verbosity() for library in libraries]
    bars, download_bars = logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    asked = os.environ.get(_NO_CONVERSION)
    for library in libraries:
        library.set_verbosity(library.CRITICAL)
    logging.disable_progress_bar()
    if download_bars:
        # Those of downloads were switched off along with it, and they show on terminals only.
        enable_progress_bars()
    os.environ[_NO_CONVERSION] = "1"
    try:
        yield
    finally:
        for library, before in zip(libraries, verbosity, strict=True):
            library.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
        if asked is None:
            del os.environ[_NO_CONVERSION]
        else:
            os.environ[_NO_CONVERSION] = asked
