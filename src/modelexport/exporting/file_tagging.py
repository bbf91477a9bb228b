"""`tag_file`: add the hierarchy of a model to an ONNX file that any exporter wrote of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from modelexport.attempt_report import AttemptReport
from modelexport.capture import check_signature, read_module_tree, refuse_program
from modelexport.display import counted
from modelexport.errors import InputError
from modelexport.exporting.progress import Observer, Pipeline
from modelexport.exporting.result import ExportResult
from modelexport.graph import graph_hash, nodes_with_ids, operation, tensors_with_ids
from modelexport.hierarchy import HierarchyDocument, ModuleTree, TagView
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits
from modelexport.storage import UntaggedFile, build_document, check_target, read_untagged, sidecar_path, write_tagged
from modelexport.strategies import UsageBasedStrategy
from modelexport.torch_support import TORCH_LOCK, evaluation_mode, normalize_inputs, preserved_state

if TYPE_CHECKING:
    from modelexport.capture.by_value import ValueMatch

STRATEGY = UsageBasedStrategy.name
STEPS = ("check", "read", "run", "document", "write")


def tag_file(
    onnx_path: str | Path,
    model: torch.nn.Module,
    example_inputs: object,
    output_path: str | Path | None = None,
    *,
    torch_nn_exceptions: Iterable[str] | str | None = None,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    training: bool = False,
    overwrite: bool = False,
    limits: RunLimits = DEFAULT_RUN_LIMITS,
    progress: Observer | None = None,
) -> ExportResult:
    """Tag an ONNX file that another tool exported: every node with the module call that computes the same values.

    The model and the file run once each on the example inputs, and their tensors are matched by value. The file's own
    content does not change: without our metadata (`strip_hierarchy`) it is the original file. Weights in external data
    files stay there, and are copied where the output is in another folder.

    Args:
        onnx_path: The file.
        model: The model it was exported from, with the same weights.
        example_inputs: A tensor, a tuple or list of positional arguments, or a dict of keyword arguments.
        output_path: The tagged file to write; None replaces the file itself.
        torch_nn_exceptions: The torch.nn classes that appear in tags: names, ``"all"`` or ``"none"``.
        include: Patterns of qualified class names that always appear in tags.
        exclude: Patterns of qualified class names that never appear in tags.
        training: Run the model in its current mode instead of evaluation mode.
        overwrite: Replace existing files.
        limits: The limits of one run of the file.
        progress: Called with a `ProgressEvent` when a step begins and ends.

    Raises:
        InputError: The file, the model, its inputs or the path cannot be used as given, or the file was not
            exported from the model.
        FileFormatError: The file is not an ONNX model.
        StrategyIncompatibleError: onnxruntime is missing, or cannot run the file.
        StorageError: The files could not be written.
    """
    # Imported here so that an export loads faster.
    from modelexport.capture.by_value import attribute_by_value, check_onnxruntime

    pipeline = Pipeline(STEPS, progress)
    with pipeline.step("check"):
        target = check_target(onnx_path if output_path is None else output_path, force=overwrite)
        view = TagView.create(torch_nn_exceptions, include, exclude)
        args, kwargs = _check_inputs(model, example_inputs)
        check_onnxruntime()
    with pipeline.step("read") as step:
        file = read_untagged(onnx_path, target, overwrite=overwrite)
        step.detail = counted(len(nodes_with_ids(file.graph)), "node")
    with pipeline.step("run") as step:
        tree = read_module_tree(model)
        with TORCH_LOCK, preserved_state(model), contextlib.nullcontext() if training else evaluation_mode(model):
            match = attribute_by_value(file.graph, model, tree, args, kwargs, limits)
        _check_same_model(match, file.path, model)
        step.detail = f"{counted(len(match.calls), 'call')}, {match.describe_agreement()}"
    with pipeline.step("document"):
        document = _document(file, tree, match, view)
    with pipeline.step("write"):
        files = write_tagged(file, document, target, overwrite=overwrite)
    attempt = AttemptReport(STRATEGY, document.exporter, "it tags files from any exporter")
    return ExportResult(target, sidecar_path(target), files, document, (attempt,), tuple(pipeline.reports))


def _check_inputs(model: object, example_inputs: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"the model is a {type(model).__name__}, not a torch.nn.Module: pass the module itself")
    args, kwargs = normalize_inputs(example_inputs, None, model)
    check_signature(model, args, kwargs)
    refuse_program(STRATEGY, model)
    return args, kwargs


def _check_same_model(match: ValueMatch, path: Path, model: torch.nn.Module) -> None:
    if not match.agrees:
        raise InputError(
            f"{path} does not compute what {type(model).__name__} computes on these inputs: "
            f"{match.describe_agreement()}. Give the model that the file was exported from, with the same weights and "
            "in the same mode; a quantized file computes different values"
        )


def _document(file: UntaggedFile, tree: ModuleTree, match: ValueMatch, view: TagView) -> HierarchyDocument:
    return build_document(
        strategy=STRATEGY,
        exporter=file.producer,
        graph_hash=graph_hash(file.graph),
        view=view,
        tree=tree,
        calls=match.calls,
        nodes=[(node_id, operation(node), match.attributions[node]) for node_id, node in nodes_with_ids(file.graph)],
        graph_tensors=tensors_with_ids(file.graph),
    )
