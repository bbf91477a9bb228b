"""tag_file: the hierarchy of a finished ONNX file, whoever made it, from the model that it was made of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from modelexport.capture import check_signature, read_module_tree, refuse_program
from modelexport.errors import InputError
from modelexport.exporting.progress import Observer, Pipeline
from modelexport.exporting.result import ExportResult
from modelexport.graph import graph_hash, nodes_with_ids, operation, tensors_with_ids
from modelexport.hierarchy import HierarchyDocument, ModuleTree, TagView
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits
from modelexport.storage import UntaggedFile, build_document, check_target, read_untagged, sidecar_path, write_tagged
from modelexport.strategies import AttemptReport, UsageBasedStrategy
from modelexport.torch_support import TURN, evaluation_mode, normalize_inputs, preserved_state

if TYPE_CHECKING:
    from modelexport.capture.by_value import Usage

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
    """Tag an ONNX file that another tool made: every node with the module call that computes what it computes.

    The model and the file run once each on the example inputs; what they compute is matched by value. The file's own
    content stays as it is: take our metadata away with `strip_hierarchy`, and it is the file that was given. Weights
    in files of their own stay there, and are copied along where the output goes to another folder.

    Args:
        onnx_path: The file.
        model: The model it was exported from, with the same weights.
        example_inputs: A tensor, a tuple or list of positional arguments, or a dict of keyword arguments.
        output_path: Where to write the tagged file; None replaces the file itself.
        torch_nn_exceptions: The torch.nn classes that show in tags: names, ``"all"`` or ``"none"``.
        include: Patterns on qualified class names that show in tags in any case.
        exclude: Patterns on qualified class names that do not.
        training: Run the model in the mode it is in, instead of evaluation mode.
        overwrite: Replace files that exist.
        limits: What one run of the file may take.
        progress: Called with a `ProgressEvent` when a step begins and ends.

    Raises:
        InputError: The file, the model, its inputs or the path cannot be used as given, or don't belong together.
        FileFormatError: The file is not an ONNX model.
        StrategyIncompatibleError: onnxruntime is missing, or cannot run the file.
        StorageError: The files could not be written.
    """
    # Imported here so that an export does without it.
    from modelexport.capture.by_value import attribute_by_usage, check_onnxruntime

    steps = Pipeline(STEPS, progress)
    with steps.step("check"):
        target = check_target(Path(onnx_path if output_path is None else output_path), force=overwrite)
        view = TagView.create(torch_nn_exceptions, include, exclude)
        args, kwargs = _check_inputs(model, example_inputs)
        check_onnxruntime()
    with steps.step("read") as note:
        given = read_untagged(onnx_path, target, overwrite=overwrite)
        note.detail = f"{len(nodes_with_ids(given.graph))} nodes"
    with steps.step("run") as note:
        tree = read_module_tree(model)
        with TURN, preserved_state(model), contextlib.nullcontext() if training else evaluation_mode(model):
            usage = attribute_by_usage(given.graph, model, tree, args, kwargs, limits)
        _check_same_model(usage, given.path, model)
        note.detail = f"{len(usage.calls)} calls, {usage.matched} of {usage.telling} tensors known by value"
    with steps.step("document"):
        document = _document(given, tree, usage, view)
    with steps.step("write"):
        files = write_tagged(given, document, target, overwrite=overwrite)
    attempt = AttemptReport(STRATEGY, document.exporter, "it tags files from any exporter")
    return ExportResult(target, sidecar_path(target), files, document, (attempt,), tuple(steps.reports))


def _check_inputs(model: object, example_inputs: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"the model is a {type(model).__name__}, not a torch.nn.Module: pass the module itself")
    args, kwargs = normalize_inputs(example_inputs, None)
    check_signature(model, args, kwargs)
    refuse_program(STRATEGY, model)
    return args, kwargs


def _check_same_model(usage: Usage, file: Path, model: torch.nn.Module) -> None:
    if not usage.agrees:
        raise InputError(
            f"{file} does not compute what {type(model).__name__} computes on these inputs: {usage.matched} of its "
            f"{usage.telling} tensors have values that the model made. Give the model that the file was exported "
            "from, with the same weights and in the same mode; a quantized file has values of its own"
        )


def _document(given: UntaggedFile, tree: ModuleTree, usage: Usage, view: TagView) -> HierarchyDocument:
    return build_document(
        strategy=STRATEGY,
        exporter=given.producer,
        graph_hash=graph_hash(given.graph),
        view=view,
        tree=tree,
        calls=usage.calls,
        nodes=[(identity, operation(node), usage.attributions[node]) for identity, node in nodes_with_ids(given.graph)],
        graph_tensors=tensors_with_ids(given.graph),
    )
