"""`export_stages`: export a generating model as one ONNX file per stage, all of them or none."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

import torch

from modelexport.capture import TRANSFORMERS, Capture
from modelexport.errors import InputError, ModelExportError
from modelexport.exporting.export import export_model
from modelexport.exporting.export_run import STEPS
from modelexport.exporting.export_writer import share_data_file
from modelexport.exporting.progress import Observer, check_observer
from modelexport.exporting.result import ExportResult, ProgressEvent
from modelexport.storage import Staging, check_target, data_files, stage_files
from modelexport.strategies import CaptureRequest, FxStrategy, Strategy, StrategyRegistry
from modelexport.torch_support import isolated_run, normalize_inputs

if TYPE_CHECKING:
    from modelexport.capture.fx import Stage

# The tensors of a cache, as transformers' exporter names them: one cache for each side of an encoder-decoder.
_CACHE = re.compile(
    r"(?:(?:in|out)put\.)?past_key_values\.(?:(?P<side>self|cross)_attention_cache\.)?"
    r"layers\.(?P<layer>\d+)\.(?P<part>keys|values)"
)
# The weights of all stages are named after this, as if it were one of them.
_SHARED = "stages"
# Options of export_model that stages do not support, with the reason.
_REFUSED = {
    "strategy": "the stages are exported with strategy 'fx'",
    "exporter": "the stages are exported with transformers' own exporter",
    "registry": "the stages are exported with strategy 'fx'",
    "training": "a model generates in evaluation mode",
    "dynamic_shapes": "each stage has its own inputs; dynamic=False fixes all axes",
    "dynamic_axes": "each stage has its own inputs; dynamic=False fixes all axes",
    "input_names": "each stage has its own inputs",
    "output_names": "each stage has its own outputs",
    "kwargs": "example inputs are a dict of keyword arguments already",
    "fx_graph_path": "each stage has its own graph",
    "jit_graph_path": "the stages are not traced by TorchScript",
}


@final
@dataclasses.dataclass(frozen=True)
class _StageStrategy(Strategy):
    """`fx` with transformers' own exporter, which also exports submodules of transformers models."""

    name: ClassVar[str] = FxStrategy.name
    dynamic: bool
    rename: Callable[[str, bool], str] | None
    other_inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def exporters(self, model: torch.nn.Module) -> tuple[str, ...]:
        """See `Strategy.exporters`."""
        return (TRANSFORMERS,)

    def capture(self, request: CaptureRequest) -> Capture:
        """See `Strategy.capture`."""
        names = {} if self.rename is None else {"rename": self.rename}
        options = {**request.options, "dynamic": self.dynamic, **names}
        capture = FxStrategy().capture(dataclasses.replace(request, options=options))
        return dataclasses.replace(capture, other_inputs=self.other_inputs)


def runtime_name(name: str, is_output: bool) -> str:
    """The name that optimum and onnxruntime-genai use for a tensor of the cache; other names stay as they are."""
    match = _CACHE.fullmatch(name)
    if match is None:
        return name
    side = {"self": "decoder.", "cross": "encoder.", None: ""}[match["side"]]
    kind = "present" if is_output else "past_key_values"
    return f"{kind}.{match['layer']}.{side}{match['part'].removesuffix('s')}"


def stage_path(output_path: Path, stage: str) -> Path:
    """The path of a stage: ``model_prefill.onnx`` for ``model.onnx``."""
    return output_path.with_name(f"{output_path.stem}_{stage}{output_path.suffix}")


def export_stages(
    model: torch.nn.Module,
    example_inputs: object,
    output_path: str | Path,
    *,
    dynamic: bool = True,
    transformers_names: bool = False,
    overwrite: bool = False,
    progress: Observer | None = None,
    **options: Any,
) -> dict[str, ExportResult]:
    """Export the stages that a transformers model runs in `generate`, each as an ONNX file with its own hierarchy.

    The stages are those of transformers' own decomposition (the forward pass over the prompt, and one with a cache),
    and what `generate` runs before them, such as an encoder. Each graph is the one that `transformers.exporters`
    writes for that stage. All files are written, or none. Weights in a separate file (`external_data`) are shared.

    Args:
        model: A transformers model that generates.
        example_inputs: The arguments of its `generate`, by name; a single tensor is the model's main input.
        output_path: ``model.onnx`` writes ``model_prefill.onnx`` and so on, each with its sidecar.
        dynamic: Make every axis dynamic that can be; an axis of size 1 in the example inputs cannot. Otherwise all
            sizes are those of the example inputs, and the cache cannot grow.
        transformers_names: Keep the names of transformers' exporter for the tensors of the cache, instead of
            ``past_key_values.0.key`` and ``present.0.key``, which optimum and onnxruntime-genai use.
        overwrite: Replace existing files.
        progress: Called with a `ProgressEvent` when a step of a stage begins and ends.
        **options: Other options of `export_model`: `optimize`, `opset_version`, `torch_nn_exceptions`, `private`, …

    Returns:
        The result of each stage by name, in the order they run.

    Raises:
        InputError: The model has no stages, or the inputs, an option or a path cannot be used as given.
        ExportError: A stage could not be exported.
        StorageError: The files could not be written.
    """
    # Imported here so that other exports load faster.
    from modelexport.capture.fx import decompose

    check_observer(progress)
    for name in options:
        if name in _REFUSED:
            raise InputError(f"option {name!r} is not supported for stages: {_REFUSED[name]}")
    # Nothing is written to this path itself: it only provides the folder and the name.
    target = check_target(Path(output_path), force=True, sidecar=False)
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"the model is a {type(model).__name__}, not a torch.nn.Module: pass the module itself")
    with isolated_run(model):
        stages = decompose(model, _generate_inputs(model, example_inputs))
    targets = [check_target(stage_path(target, stage.name), force=overwrite) for stage in stages]
    rename = None if transformers_names else runtime_name
    with stage_files(targets[-1], force=overwrite) as staging:
        staged = {}
        for number, (stage, final_path) in enumerate(zip(stages, targets, strict=True)):
            observer = _stage_observer(progress, stage.name, number, len(stages)) if progress is not None else None
            path = staging.path(final_path.name)
            registry = StrategyRegistry((_StageStrategy(dynamic, rename, stage.other_inputs),))
            staged[stage.name] = _export_stage(stage, path, registry=registry, progress=observer, **options)
        models = [final_path.name for final_path in targets]
        shared = share_data_file(staging.path(models[0]).parent, models, stage_path(target, _SHARED))
        results = {name: _moved(result, target.parent, shared) for name, result in staged.items()}
        files = {file for result in results.values() for file in result.files}
        _commit(staging, targets, sorted(files), data_files(stage_path(target, _SHARED)))
    return results


def _generate_inputs(model: torch.nn.Module, example_inputs: object) -> dict[str, Any]:
    args, kwargs = normalize_inputs(example_inputs, None)
    main = getattr(model, "main_input_name", None)
    if len(args) == 1 and isinstance(main, str) and main not in kwargs:
        return {main: args[0], **kwargs}
    if args:
        raise InputError(f"{len(args)} example inputs without names: give a dict of the arguments of generate")
    return kwargs


def _export_stage(stage: Stage, path: Path, **options: Any) -> ExportResult:
    try:
        return export_model(stage.module, stage.inputs, path, **options)
    except ModelExportError as error:
        where = f"stage {stage.name!r}" + (f" ({stage.path})" if stage.path else "")
        error.args = (f"{where}: {error}",)
        raise


def _commit(staging: Staging, targets: list[Path], files: list[Path], shared: list[Path]) -> None:
    """Move all files to their targets at once, and remove the weights of earlier exports."""
    model = targets[-1]
    # Weights before the graphs that refer to them.
    files.sort(key=lambda file: file.suffix != ".data")
    outdated = {*shared, *(file for target in targets for file in data_files(target))}.difference(files)
    others = {file.name: file for file in files if file != model}
    staging.commit(model.name, None, others, obsolete=sorted(outdated))


def _moved(result: ExportResult, folder: Path, shared: str | None) -> ExportResult:
    """The result with the final paths of its files; `shared` is the data file of all stages."""
    files = [file.name for file in result.files if file.suffix != ".data"]
    return dataclasses.replace(
        result,
        onnx_path=folder / result.onnx_path.name,
        sidecar_path=folder / result.sidecar_path.name,
        files=tuple(folder / name for name in (*files, *([shared] if shared else ()))),
    )


def _stage_observer(progress: Observer, stage: str, number: int, count: int) -> Callable[[ProgressEvent], object]:
    """An observer that counts the steps of a stage among those of all stages."""

    def notify(event: ProgressEvent) -> object:
        position, total = number * len(STEPS) + event.number, count * len(STEPS)
        return progress(dataclasses.replace(event, step=f"{stage} {event.step}", number=position, total=total))

    return notify
