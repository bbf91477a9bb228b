"""Undocumented APIs of transformers, each wrapped in one function: internals of its exporters and auto classes.

Only some releases have exporters. See `private_part`.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

from modelexport.errors import UnsupportedLibraryError
from modelexport.torch_support.private_part import Part

_EXPORTED = "exports models that torch's exporter cannot export"
_EXPORTER = Part("transformers.exporters.exporter_onnx.OnnxExporter", _EXPORTED, runs_model=True)
_CONFIG = Part("transformers.exporters.exporter_onnx.OnnxConfig", _EXPORTED)
_NAMES = Part("transformers.exporters.exporter_onnx.disambiguate_io_names", "names graph inputs and outputs")
_PRECOMPUTE = Part(
    "transformers.exporters.utils.precompute_export_inputs", "exports with unprepared inputs where preparing them fails"
)
_PREPARE = Part(
    "transformers.exporters.utils.prepare_for_export",
    "runs a file on the inputs that its exporter prepared",
    runs_model=True,
)
_REGISTER = Part(
    "transformers.exporters.exporter_dynamo.register_cache_pytrees_for_model",
    "exports models that return a cache",
    runs_model=True,
)
_DECOMPOSE = Part(
    "transformers.exporters.utils.decompose_for_generation", "finds the stages of text generation", runs_model=True
)


def has_exporters() -> bool:
    """Whether the installed release has exporters."""
    return importlib.util.find_spec("transformers.exporters") is not None


def export_to_onnx(
    model: torch.nn.Module, inputs: dict[str, Any], options: Mapping[str, Any]
) -> torch.onnx.ONNXProgram:
    """Export a `PreTrainedModel` with transformers' ONNX exporter. It changes caches among the inputs in place."""
    config = _CONFIG.call(object, **options)
    exporter = _EXPORTER.having(_EXPORTER.call(object), "export")
    return _EXPORTER.check(exporter.export(model, inputs, config), torch.onnx.ONNXProgram)


@contextlib.contextmanager
def input_preparation_through(
    around: Callable[[Callable[..., None], torch.nn.Module, MutableMapping[str, Any]], None],
) -> Iterator[None]:
    """Within the context, the exporter prepares inputs through `around`; its first argument is the original function.

    Before it traces a model, the exporter adds values to the inputs that modules inside would compute from them. Does
    nothing on a release that does not prepare inputs.
    """
    try:
        _PRECOMPUTE.find()
    except UnsupportedLibraryError:
        yield
        return
    with _PRECOMPUTE.called_through(around):
        yield


def graph_names_through(rename: Callable[[str, bool], str]) -> contextlib.AbstractContextManager[None]:
    """Within the context, the exporter renames graph inputs and outputs before it passes the names to torch.

    `rename` takes the exporter's name, and whether it is an output.
    """

    def named(original: Callable[..., Any], inputs: list[str], outputs: list[str]) -> tuple[list[str], list[str]]:
        inputs, outputs = original(inputs, outputs)
        return [rename(name, False) for name in inputs], [rename(name, True) for name in outputs]

    return _NAMES.called_through(named)


def prepared_inputs(model: torch.nn.Module, inputs: dict[str, Any]) -> Mapping[str, Any]:
    """The inputs after the exporter's preparation. Changes both the model and the inputs."""
    found = _PREPARE.call(tuple, model, inputs)
    if len(found) != 3 or not isinstance(found[1], Mapping):
        raise _PREPARE.changed("it returns no model, inputs and outputs")
    return found[1]


def register_caches(model: torch.nn.Module) -> None:
    """Register transformers' cache classes as pytree nodes in torch. torch cannot unregister them."""
    _REGISTER.call(object, model)


def decompose_for_generation(
    model: torch.nn.Module, inputs: dict[str, Any]
) -> dict[str, tuple[torch.nn.Module, dict[str, Any]]]:
    """The modules that `generate` runs with these arguments, by name, each with its inputs.

    The decode stage gets more than one token.
    """
    return _DECOMPOSE.call(dict, model, inputs, multi_token_decode=True)


# --- models and configurations ----------------------------------------------------------------------------------


_ATTENTION = Part("transformers.PretrainedConfig._attn_implementation", "names the attention that a model runs")
_EXPERTS = Part("transformers.PretrainedConfig._experts_implementation", "names the experts that a model runs")
_FROM_CONFIG = Part(
    "transformers.PreTrainedModel._from_config", "creates a model with the settings of the caller", runs_model=True
)
_MODEL_MAPPING = Part("transformers.AutoModel._model_mapping", "finds the class of a model by its configuration")


def implementations_of(config: Any) -> Iterator[Any]:
    """The names of the attention and expert implementations that a configuration selects."""
    for part in (_ATTENTION, _EXPERTS):
        found = part.optional(config)
        yield from found.values() if isinstance(found, dict) else (found,)


def model_from_config(model_class: Any, config: Any, settings: Mapping[str, Any]) -> Any:
    """Create a model with random weights as auto classes do; the class's constructor would ignore the settings."""
    return _FROM_CONFIG.run(_FROM_CONFIG.of(model_class), torch.nn.Module, config, **settings)


def models_by_config(auto_class: Any) -> Any:
    """An auto class's mapping from configuration classes to model classes; None where it has none."""
    found = _MODEL_MAPPING.optional(auto_class)
    if found is None:
        # Does any auto class have one?
        _MODEL_MAPPING.find()
        return None
    return _MODEL_MAPPING.check(found, Mapping)  # type: ignore[type-abstract]  # for isinstance
