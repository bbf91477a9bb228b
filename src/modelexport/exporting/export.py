"""`export_model`: checks its arguments, then runs the export."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from modelexport.capture import DynamicAxes, check_forward, check_signature, read_module_tree
from modelexport.exporting.export_arguments import (
    candidates,
    check_level,
    check_options,
    check_targets,
    inference_policy,
)
from modelexport.exporting.export_run import STEPS, ExportRun, prefixed
from modelexport.exporting.progress import Observer, Pipeline
from modelexport.exporting.result import ExportResult
from modelexport.exporting.tagged_capture import Tagging
from modelexport.hierarchy import DEFAULT_CHECK_BYTES, Boundaries, TagView
from modelexport.strategies import AUTO, DEFAULT_TIMEOUT, Attempts, CaptureRequest, StrategyRegistry
from modelexport.torch_support import CopyOnWrite, check_model, flattened_names, normalize_inputs

if TYPE_CHECKING:
    from modelexport.verification import FileChecker


def export_model(
    model: torch.nn.Module,
    example_inputs: object,
    output_path: str | Path,
    *,
    strategy: str = AUTO,
    exporter: str | None = None,
    optimize: bool = True,
    verbose: bool = False,
    torch_nn_exceptions: Iterable[str] | str | None = None,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    advanced_resolution: bool = True,
    boundaries: Boundaries = (),
    dynamic: DynamicAxes | None = None,
    private: bool = False,
    training: bool = False,
    allow_specialization: bool = False,
    timeout: float | None = DEFAULT_TIMEOUT,
    check: str | None = None,
    check_bytes: int = DEFAULT_CHECK_BYTES,
    probes: int = 0,
    external_data: bool | None = None,
    overwrite: bool = False,
    fx_graph_path: str | Path | None = None,
    jit_graph_path: str | Path | None = None,
    progress: Observer | None = None,
    registry: StrategyRegistry | None = None,
    **torch_options: Any,
) -> ExportResult:
    """Export a model to ONNX with every node attributed to the module call it came from.

    The graph is the one that `torch.onnx.export` writes with the same arguments; without our metadata
    (`strip_hierarchy`) the bytes are the same too. Whether the export succeeds, fails or is interrupted: the model and
    torch's global state do not change, and the files at `output_path` are completely old or completely new.

    Args:
        model: The model. It is exported in evaluation mode unless `training` is set.
        example_inputs: A tensor, a tuple or list of positional arguments, or a dict of keyword arguments.
        output_path: The ``<name>.onnx`` to write; the sidecar ``<name>_hierarchy.json`` is written next to it.
        strategy: The source of the evidence; ``"auto"`` tries all strategies in order.
        exporter: The exporter that creates the graph; None tries those of the strategy in order.
        optimize: Passed to `torch.onnx.export`.
        verbose: Passed to `torch.onnx.export`: the dynamo exporter prints its progress, the TorchScript exporter
            writes stack traces into the file.
        torch_nn_exceptions: The torch.nn classes that appear in tags: names, ``"all"`` or ``"none"``.
        include: Patterns of qualified class names that always appear in tags.
        exclude: Patterns of qualified class names that never appear in tags.
        advanced_resolution: Infer owners from data flow for nodes without a recorded module call; without it such
            nodes belong to the root.
        boundaries: Modules that this inference must not cross: paths, classes (``"class:BertLayer"``, or the class),
            or a predicate on a module's information.
        dynamic: Dynamic axes of the inputs. ``"auto"`` finds them by running the model, and drops those that torch
            cannot export; ``{"input_ids": {0: "batch", 1: "length"}}`` names them by the arguments of `forward`
            (``"pair.left"`` for a nested tensor). An axis of size 1 in the example is exported with size 2.
        private: Leave out all source paths and stack traces, including those that torch writes.
        training: Export the model in its current mode.
        allow_specialization: Fall back to tracing also where what the model computes depends on values of its inputs
            that its Python code reads. They then become constants of the example inputs; the notes of the result name
            the places. Not needed where the check shows that these values do not matter.
        timeout: Seconds for all attempts together, None for no limit. When they are used up, no further strategy,
            exporter or variant is tried; a running attempt is not interrupted. `result.attempts` lists all.
        check: ``"run"``: onnxruntime loads the file and runs it on the example inputs, and its results are compared
            with PyTorch's. A file that fails is not used if another attempt gives a better one; `result.check` says
            what was shown. ``"load"`` only loads it, ``"off"`` does neither. None for the environment variable
            MODELEXPORT_CHECK, or ``"run"``. Without onnxruntime nothing is checked, and `result.check` says so.
        check_bytes: Files with more bytes of weights are loaded and not run.
        probes: The file is also run on so many inputs with other values, which are derived from the example inputs.
        external_data: Store weights in a separate file; None does so only where their size requires it.
        overwrite: Replace existing files.
        fx_graph_path: Write the traced FX graph to this file, each node with its module call.
        jit_graph_path: The same for the TorchScript graph of strategy ``"htp"``.
        progress: Called with a `ProgressEvent` when a step begins and ends.
        registry: The strategies to choose from.
        **torch_options: Other arguments of `torch.onnx.export`: `opset_version`, `dynamic_shapes`, `input_names`,
            `output_names`, `kwargs`, … ``output_names="auto"`` names the outputs after the fields of the result
            (``output`` for a single tensor, ``output.0`` for a position in a tuple), with ``output.`` in front where
            another tensor has that name.

    Returns:
        The result, which is also a mapping.

    Raises:
        InputError: The model, its inputs, an option or the path cannot be used as given.
        ExportError: No strategy could export the model. A file that the check finds wrong is not an error here.
        SpecializationError: Only tracing could, but it turns values that depend on the inputs into constants: see
            `allow_specialization`.
        StorageError: The files could not be written.
    """
    pipeline = Pipeline(STEPS, progress)
    with pipeline.step("check"):
        level = check_level(check, check_bytes, probes)
        target, graph_files = check_targets(output_path, {"fx": fx_graph_path, "jit": jit_graph_path}, overwrite)
        view = TagView.create(torch_nn_exceptions, include, exclude)
        check_model(model)
        policy = inference_policy(model, boundaries, advanced_resolution)
        tried = candidates(registry, strategy, exporter, model, dynamic, torch_options)
        check_options(torch_options, dynamic)
        options = {**torch_options, "optimize": optimize, "verbose": verbose}
        request, notes = _request(model, example_inputs, options, training, allow_specialization)
    tagging = Tagging(policy, view, private, torch_options.get("opset_version"), notes)
    writing = {"external_data": external_data, "overwrite": overwrite, "options": torch_options}
    has_weights = torch_options.get("export_params", True)
    with _checker(request, level, check_bytes if has_weights else None) as checker:
        run = ExportRun(pipeline, Attempts(timeout), tagging, target, graph_files, writing, checker, probes)
        return run.run(request, tried, dynamic)


def _checker(request: CaptureRequest, level: str, most_bytes: int | None) -> FileChecker:
    # Imported here so that other parts of the package load faster.
    from modelexport.verification import FileChecker

    return FileChecker(
        request.model, request.args, request.kwargs, level=level, most_bytes=most_bytes, training=request.training
    )


def _request(
    model: torch.nn.Module, example_inputs: object, options: dict[str, Any], training: bool, specialize: bool
) -> tuple[CaptureRequest, tuple[str, ...]]:
    """The request, and notes on the example inputs, which are checked."""
    args, kwargs = normalize_inputs(example_inputs, options.pop("kwargs", None), model)
    check_signature(model, args, kwargs)
    names: list[str] = []
    written = CopyOnWrite(model)
    notes = check_forward(
        model,
        args,
        kwargs,
        training=training,
        on_result=lambda result: names.extend(flattened_names(result)),
        written=written,
    )
    result_names: tuple[str, ...] = ()
    if options.get("output_names") == AUTO:
        del options["output_names"]
        # Inputs have the names of forward's arguments, and initializers those of parameters and buffers.
        arguments = (argument.name for argument in read_module_tree(model)[""].forward_arguments)
        result_names = prefixed(names, {*arguments, *(options.get("input_names") or ()), *model.state_dict()})
    request = CaptureRequest(
        model, args, kwargs, options, "", training, specialize, written=written, result_names=result_names
    )
    return request, notes
