"""Choose the transformers class to load a model with: by task, by auto class, or from its configuration."""

from __future__ import annotations

import difflib
import importlib
from typing import Any

from modelexport.errors import InputError, ModelSourceError
from modelexport.torch_support.transformers_private import models_by_config

_AUTO_PREFIX = "Auto"


def choose_class(reference: str, config: Any, task: str | None) -> Any:
    """The model class or auto class of transformers for a configuration.

    Raises:
        InputError: The task does not exist, or does not apply to this kind of model.
    """
    if task is not None:
        return _class_for_task(reference, config, task)
    import transformers

    for name in _architectures(config):
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

    Raises:
        ModelSourceError: Loading would run code from the repository.
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


def _architectures(config: Any) -> list[str]:
    named = getattr(config, "architectures", None) or []
    return [name for name in named if isinstance(name, str)]


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
        known = [*_classes_by_task(), *_auto_class_names()]
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


def _auto_class_names() -> list[str]:
    import transformers

    return [name for name in dir(transformers) if name.startswith(_AUTO_PREFIX) and _auto_class(name) is not None]
