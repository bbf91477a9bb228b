"""Parts of transformers that it does not document, each behind one function: its exporters' internals and auto classes.

Only some releases have exporters. Those that these parts were seen to work on are in `private.SEEN_ON`.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

from modelexport.torch_support.private import find_attribute, find_part

_EXPORTERS = "transformers.exporters"


def has_exporters() -> bool:
    """Whether the installed release has exporters."""
    return importlib.util.find_spec(_EXPORTERS) is not None


def export_to_onnx(
    model: torch.nn.Module, inputs: dict[str, Any], options: Mapping[str, Any]
) -> torch.onnx.ONNXProgram:
    """Export with transformers' ONNX exporter, which changes caches among the inputs in place.

    Args:
        model: A `PreTrainedModel`.
        inputs: Its example inputs.
        options: What the exporter's configuration takes.
    """
    exporter = find_part(f"{_EXPORTERS}.exporter_onnx.OnnxExporter")
    config = find_part(f"{_EXPORTERS}.exporter_onnx.OnnxConfig")(**options)
    program: torch.onnx.ONNXProgram = exporter().export(model, inputs, config)
    return program


@contextlib.contextmanager
def input_preparation_through(
    around: Callable[[Callable[..., None], torch.nn.Module, MutableMapping[str, Any]], None],
) -> Iterator[None]:
    """For the time of the context, the exporter prepares inputs through `around`, which gets the original first.

    Before it traces a model, the exporter adds to the inputs what modules inside would compute from them. A release
    that does not prepare inputs is left as it is.
    """
    utils = find_part(f"{_EXPORTERS}.utils")
    original = getattr(utils, "precompute_export_inputs", None)
    if original is None:
        yield
        return
    utils.precompute_export_inputs = lambda model, inputs: around(original, model, inputs)
    try:
        yield
    finally:
        utils.precompute_export_inputs = original


def prepared_inputs(model: torch.nn.Module, inputs: dict[str, Any]) -> Mapping[str, Any]:
    """The inputs as the exporter has them before it traces the model. It changes both the model and the inputs."""
    _, prepared, _ = find_part(f"{_EXPORTERS}.utils.prepare_for_export")(model, inputs)
    found: Mapping[str, Any] = prepared
    return found


def register_caches(model: torch.nn.Module) -> None:
    """Tell torch what is in transformers' caches. torch keeps it: there is no way to take it back."""
    find_part(f"{_EXPORTERS}.exporter_dynamo.register_cache_pytrees_for_model")(model)


def decompose_for_generation(
    model: torch.nn.Module, inputs: dict[str, Any]
) -> dict[str, tuple[torch.nn.Module, dict[str, Any]]]:
    """The parts that `generate` runs, by name, each with what it was given; after the prompt more than one token.

    Args:
        model: A `PreTrainedModel` that generates.
        inputs: What `generate` takes.
    """
    decompose = find_part(f"{_EXPORTERS}.utils.decompose_for_generation")
    found: dict[str, tuple[torch.nn.Module, dict[str, Any]]] = decompose(model, inputs, multi_token_decode=True)
    return found


def holds_tensors(value: object) -> bool:
    """Whether the exporter finds a tensor in a value: it names graph inputs after those that it finds."""
    return bool(find_part(f"{_EXPORTERS}.utils.get_leaf_tensors")(value))


# --- models and configurations ----------------------------------------------------------------------------------


def implementations_of(config: Any) -> Iterator[Any]:
    """The names of the kernels that a configuration asks for, of attention and of experts."""
    for name in ("_attn_implementation", "_experts_implementation"):
        found = getattr(config, name, None)
        yield from found.values() if isinstance(found, dict) else (found,)


def model_from_config(model_class: Any, config: Any, settings: Mapping[str, Any]) -> Any:
    """A model with random weights, as auto classes make it; a plain call of the class would leave the settings out."""
    return find_attribute(model_class, "_from_config")(config, **settings)


def models_by_config(auto_class: Any) -> Any:
    """An auto class's table from configuration classes to model classes; None for a class that has none."""
    return getattr(auto_class, "_model_mapping", None)
