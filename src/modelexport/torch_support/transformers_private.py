"""Undocumented APIs of transformers, each wrapped in one function: internals of its exporters and auto classes.

Only some releases have exporters. `private.SEEN_ON` lists the tested releases.
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
    """Export with transformers' ONNX exporter. It changes caches among the inputs in place.

    Args:
        model: A `PreTrainedModel`.
        inputs: Its example inputs.
        options: Arguments of the exporter's configuration.
    """
    exporter = find_part(f"{_EXPORTERS}.exporter_onnx.OnnxExporter")
    config = find_part(f"{_EXPORTERS}.exporter_onnx.OnnxConfig")(**options)
    program: torch.onnx.ONNXProgram = exporter().export(model, inputs, config)
    return program


@contextlib.contextmanager
def input_preparation_through(
    around: Callable[[Callable[..., None], torch.nn.Module, MutableMapping[str, Any]], None],
) -> Iterator[None]:
    """Within the context, the exporter prepares inputs through `around`; its first argument is the original function.

    Before it traces a model, the exporter adds values to the inputs that modules inside would compute from them. Does
    nothing on a release that does not prepare inputs.
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


@contextlib.contextmanager
def graph_names_through(rename: Callable[[str, bool], str]) -> Iterator[None]:
    """Within the context, the exporter renames graph inputs and outputs before it passes the names to torch.

    Args:
        rename: Takes the exporter's name, and whether it is an output.
    """
    module = find_part(f"{_EXPORTERS}.exporter_onnx")
    original = find_attribute(module, "disambiguate_io_names")

    def named(inputs: list[str], outputs: list[str]) -> tuple[list[str], list[str]]:
        inputs, outputs = original(inputs, outputs)
        return [rename(name, False) for name in inputs], [rename(name, True) for name in outputs]

    module.disambiguate_io_names = named
    try:
        yield
    finally:
        module.disambiguate_io_names = original


def prepared_inputs(model: torch.nn.Module, inputs: dict[str, Any]) -> Mapping[str, Any]:
    """The inputs after the exporter's preparation. Changes both the model and the inputs."""
    _, prepared, _ = find_part(f"{_EXPORTERS}.utils.prepare_for_export")(model, inputs)
    found: Mapping[str, Any] = prepared
    return found


def register_caches(model: torch.nn.Module) -> None:
    """Register transformers' cache classes as pytree nodes in torch. torch cannot unregister them."""
    find_part(f"{_EXPORTERS}.exporter_dynamo.register_cache_pytrees_for_model")(model)


def decompose_for_generation(
    model: torch.nn.Module, inputs: dict[str, Any]
) -> dict[str, tuple[torch.nn.Module, dict[str, Any]]]:
    """The modules that `generate` runs, by name, each with its inputs; the decode stage gets more than one token.

    Args:
        model: A `PreTrainedModel` that generates.
        inputs: The arguments of `generate`.
    """
    decompose = find_part(f"{_EXPORTERS}.utils.decompose_for_generation")
    found: dict[str, tuple[torch.nn.Module, dict[str, Any]]] = decompose(model, inputs, multi_token_decode=True)
    return found


def holds_tensors(value: object) -> bool:
    """Whether the exporter finds a tensor in a value: it names graph inputs after the values with tensors."""
    return bool(find_part(f"{_EXPORTERS}.utils.get_leaf_tensors")(value))


# --- models and configurations ----------------------------------------------------------------------------------


def implementations_of(config: Any) -> Iterator[Any]:
    """The names of the attention and expert implementations that a configuration selects."""
    for name in ("_attn_implementation", "_experts_implementation"):
        found = getattr(config, name, None)
        yield from found.values() if isinstance(found, dict) else (found,)


def model_from_config(model_class: Any, config: Any, settings: Mapping[str, Any]) -> Any:
    """Create a model with random weights as auto classes do; the class's constructor would ignore the settings."""
    return find_attribute(model_class, "_from_config")(config, **settings)


def models_by_config(auto_class: Any) -> Any:
    """An auto class's mapping from configuration classes to model classes; None where it has none."""
    return getattr(auto_class, "_model_mapping", None)
