"""export_model and the exporter classes: the pipeline as a list of steps."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import hashlib
import inspect
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, final

import onnx
import onnx_ir as ir
import torch

from modelexport import artifact
from modelexport.attribution import Attribution
from modelexport.boundaries import Boundaries, boundary_paths
from modelexport.capture.capture import Capture
from modelexport.capture.diagnosis import check_signature
from modelexport.capture.module_tree import read_module_tree
from modelexport.carriers import remove_source_references, write_stores
from modelexport.document import HierarchyDocument, build_document, encode_document
from modelexport.errors import ContractError, InputError
from modelexport.graph import graph_hash, identified_nodes, identified_tensors, operation, weight_bytes
from modelexport.inputs import normalize_inputs
from modelexport.pipeline import Observer, Pipeline
from modelexport.preserve import TURN, evaluation_mode, preserved_state
from modelexport.projection import Projection, project
from modelexport.resolution import ResolutionPolicy, add_contexts, complete
from modelexport.result import AttemptReport, ExportResult
from modelexport.saving import save_inline
from modelexport.stand_ins import find_stand_ins
from modelexport.strategies.base import CaptureRequest
from modelexport.strategies.registry import AUTO, StrategyRegistry
from modelexport.strategies.selection import Candidate, StrategySelector, capture_with_first
from modelexport.tags import TagView
from modelexport.textfile import check_text_target, staged_text
from modelexport.uncollected import uncollected
from modelexport.wire import ExporterFile

STEPS = ("check", "capture", "attribute", "project", "document", "write")

# Weights beyond this lie in a file of their own unless the caller says otherwise: an ONNX file ends at 2 GB.
_EXTERNAL_DATA_BYTES = 2**30
# Beyond this torch does so whatever the caller says: the graph needs room in the file too.
_LARGEST_INLINE_BYTES = 3 * 2**29
# Arguments of torch.onnx.export that say what ours say.
_OURS = frozenset({"model", "args", "f", "dynamo"})


@dataclasses.dataclass(frozen=True)
class _Tagged:
    """A model with its document in it, ready to be written."""

    model: ir.Model | onnx.ModelProto
    document: HierarchyDocument
    file: ExporterFile | None = None


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
    private: bool = False,
    training: bool = False,
    external_data: bool | None = None,
    overwrite: bool = True,
    fx_graph_path: str | Path | None = None,
    jit_graph_path: str | Path | None = None,
    progress: Observer | None = None,
    registry: StrategyRegistry | None = None,
    **torch_options: Any,
) -> ExportResult:
    """Export a model to ONNX with every node attributed to the module call it came from.

    The graph is the one `torch.onnx.export` writes with the same arguments; take our metadata away with
    `strip_hierarchy`, and so are the bytes. Whether it succeeds, fails or is interrupted, the model and torch are
    left as they were, and the files at `output_path` are the old ones whole or the new ones whole.

    Args:
        model: The model. It is exported in evaluation mode unless `training` is set.
        example_inputs: A tensor, a tuple or list of positional arguments, or a dict of keyword arguments.
        output_path: Where to write ``<name>.onnx``; the sidecar ``<name>_hierarchy.json`` goes beside it.
        strategy: Where the evidence comes from; ``"auto"`` tries what there is, in order.
        exporter: Who makes the graph, for strategies that have several; None tries them in order.
        optimize: torch's own flag.
        verbose: torch's own flag: its dynamo exporter prints its progress, its TorchScript exporter writes stack traces
            into the file.
        torch_nn_exceptions: The torch.nn classes that show in tags: names, ``"all"`` or ``"none"``.
        include: Patterns on qualified class names that show in tags in any case.
        exclude: Patterns on qualified class names that do not.
        advanced_resolution: Reason from data flow about nodes that no module call is recorded for; without it they
            fall to the root.
        boundaries: Modules that this reasoning must not cross: paths, classes (``"class:BertLayer"``, or the class),
            or a function that says of a module's information whether it is one.
        private: Leave out all source paths and stack traces, torch's own included.
        training: Export the model in the mode it is in.
        external_data: Weights in a file of their own; None does so only where they need it.
        overwrite: Replace an existing output.
        fx_graph_path: Write the traced FX graph to this file, each node behind its call.
        jit_graph_path: The same for the TorchScript graph of strategy ``"htp"``.
        progress: Called with a `ProgressEvent` when a step begins and ends.
        registry: The strategies to choose from.
        **torch_options: Whatever else `torch.onnx.export` takes: `opset_version`, `dynamic_shapes`,
            `input_names`, `output_names`, `kwargs`, …

    Returns:
        A record of what was done, which is also a mapping.

    Raises:
        InputError: The model, its inputs, an option or the path cannot be used as given.
        ExportError: No strategy could export the model.
        StorageError: The files could not be written.
    """
    run = Pipeline(STEPS, progress)
    with run.step("check"):
        if not isinstance(output_path, str | os.PathLike):
            raise InputError(f"output_path is a {type(output_path).__name__}: give the path of the .onnx file to write")
        target = artifact.check_target(Path(output_path), force=overwrite)
        dumps: dict[str, Path] = {}
        for kind, path in (("fx", fx_graph_path), ("jit", jit_graph_path)):
            if path is not None:
                taken = (target, artifact.sidecar_path(target), *dumps.values())
                dumps[kind] = check_text_target(Path(path), force=overwrite, taken=taken)
        view = TagView.create(torch_nn_exceptions, include, exclude)
        _check_model(model)
        kept_apart = boundary_paths(read_module_tree(model), boundaries) if boundaries != () else frozenset()
        policy = ResolutionPolicy(advanced_resolution, kept_apart)
        selector = StrategySelector(registry)
        dynamic = any(torch_options.get(name) is not None for name in ("dynamic_shapes", "dynamic_axes"))
        found = selector.candidates(strategy, exporter, model, dynamic_shapes=dynamic)
        _check_options(torch_options)
        args, kwargs = normalize_inputs(example_inputs, torch_options.get("kwargs"))
        check_signature(model, args, kwargs)
        tracing = {k: v for k, v in torch_options.items() if k != "kwargs"}
        tracing |= {"optimize": optimize, "verbose": verbose}
        request = CaptureRequest(model, args, kwargs, tracing, exporter="", training=training)
    with run.step("capture") as note:
        capture, attempts = _capture(found, request)
        note.detail = f"{capture.exporter}, {len(capture.calls)} calls"
        for kind in dumps:
            if kind != capture.traced_as:
                raise InputError(
                    f"there is no {kind} graph to write: strategy {attempts[-1].strategy!r} traced the model as a "
                    f"{capture.traced_as} graph; ask for that one, or name the strategy"
                )
    with run.step("attribute"):
        traced = complete(capture.traced, capture.recorded, capture.calls, policy)
    with run.step("project"):
        projection = _project(capture, traced, policy)
    with run.step("document") as note:
        tagged = _document(capture, projection, attempts[-1].strategy, view)
        note.detail = f"{len(tagged.document.nodes)} nodes"
        if private:
            remove_source_references(tagged.model)
        write_stores(tagged.model, tagged.document)
    with run.step("write"), contextlib.ExitStack() as stack:
        for dump in dumps.values():
            stack.enter_context(staged_text(dump, capture.describe()))
        files = (*_write(tagged, target, external_data, overwrite, torch_options), *dumps.values())
    return ExportResult(
        onnx_path=target,
        sidecar_path=artifact.sidecar_path(target),
        files=files,
        document=tagged.document,
        attempts=attempts,
        steps=tuple(run.reports),
    )


def _check_model(model: object) -> None:
    if not isinstance(model, torch.nn.Module):
        hint = " (a class: create the model first)" if isinstance(model, type) else ""
        raise InputError(f"the model is a {type(model).__name__}{hint}, not a torch.nn.Module: pass the module itself")


def _check_options(options: Mapping[str, Any]) -> None:
    accepted = set(inspect.signature(torch.onnx.export).parameters) - _OURS
    for name in options:
        if name not in accepted:
            close = difflib.get_close_matches(name, sorted(accepted), n=1)
            hint = f"did you mean {close[0]!r}?" if close else "see torch.onnx.export for what it takes"
            raise InputError(f"unknown option {name!r}: {hint}")
    opset = options.get("opset_version")
    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not (isinstance(opset, int) and 1 <= opset <= newest):
        raise InputError(f"opset_version={opset!r} is no opset: choose a number from 1 to {newest}")


def _capture(found: list[Candidate], request: CaptureRequest) -> tuple[Capture, tuple[AttemptReport, ...]]:
    with TURN, preserved_state(request.model):
        if request.training:
            return capture_with_first(found, request)
        with evaluation_mode(request.model):
            return capture_with_first(found, request)


@uncollected()
def _project(capture: Capture, traced: Mapping[ir.Node, Attribution], policy: ResolutionPolicy) -> Projection:
    if capture.traced is capture.model:
        projection = Projection(traced)
    else:
        projection = project(capture.traced, traced, capture.model, capture.calls, capture.recorded_finally, policy)
        # Weights keep their names, also where the first graph was written without them.
        weights = {name: name for name in capture.model.graph.initializers}
        projection = dataclasses.replace(projection, tensors={**weights, **(projection.tensors or {})})
    if not policy.advanced:
        return projection
    return dataclasses.replace(projection, attributions=add_contexts(capture.model, projection.attributions))


@uncollected()
def _document(
    capture: Capture,
    projection: Projection,
    strategy: str,
    view: TagView,
) -> _Tagged:
    model, final, tensors = capture.model, projection.attributions, projection.tensors
    nodes = identified_nodes(model)
    unowned = [identity for identity, node in nodes if node not in final]
    if unowned:
        raise ContractError(f"{len(unowned)} nodes have no owner, {unowned[0]!r} first: please report this")
    document = build_document(
        strategy=strategy,
        exporter=capture.exporter,
        graph_hash=graph_hash(model),
        view=view,
        tree=capture.tree,
        calls=capture.calls,
        nodes=[(identity, operation(node), final[node]) for identity, node in nodes],
        graph_tensors=identified_tensors(model, nodes),
        tensors=tensors,
        folded=projection.constants,
        axes=_axes(capture, tensors),
        stand_in=None if tensors is None else find_stand_ins(capture.traced, model, tensors, capture.calls, final),
    )
    if capture.file is None:
        return _Tagged(model, document)
    return _Tagged(capture.file.skeleton(), document, capture.file)


def _axes(capture: Capture, tensors: Mapping[str, str] | None) -> dict[str, str]:
    """The final graph's tensors that hold the size of a dynamic axis, each with the axis' name."""
    if tensors is None:
        return dict(capture.axis_sizes)
    return {tensors[name]: axis for name, axis in capture.axis_sizes.items() if name in tensors}


def _write(
    tagged: _Tagged, target: Path, external_data: bool | None, overwrite: bool, options: Mapping[str, Any]
) -> tuple[Path, ...]:
    sidecar = artifact.sidecar_path(target)
    with artifact.stage(target, force=overwrite) as staging:
        staged = staging.path(target.name)
        if isinstance(tagged.model, onnx.ModelProto):
            _write_file(tagged, staged, external_data)
        else:
            _write_model(tagged.model, staged, external_data, options)
        data_name = _name_data_file(staged, target)
        staging.path(sidecar.name).write_bytes(encode_document(tagged.document))
        return staging.commit(target.name, data_name, {sidecar.name: sidecar})


def _write_model(model: ir.Model, path: Path, external_data: bool | None, options: Mapping[str, Any]) -> None:
    size = weight_bytes(model)
    included = options.get("export_params", True)
    as_inputs = options.get("keep_initializers_as_inputs", False)
    if external_data is None:
        external_data = size > _EXTERNAL_DATA_BYTES
    if included and not as_inputs and not external_data and size <= _LARGEST_INLINE_BYTES:
        save_inline(model, path)
        return
    torch.onnx.ONNXProgram(model, None).save(
        path,
        include_initializers=included,
        keep_initializers_as_inputs=as_inputs,
        external_data=external_data,
    )


def _write_file(tagged: _Tagged, path: Path, external_data: bool | None) -> None:
    """Write the exporter's own file with its nodes tagged, its weights beside it if asked for or if they are large."""
    if tagged.file is None or not isinstance(tagged.model, onnx.ModelProto):
        raise ContractError("there is no file to write the tagged nodes into")
    with path.open("wb") as file:
        file.writelines(tagged.file.pieces(tagged.model))
    if external_data or (external_data is None and tagged.file.size > _EXTERNAL_DATA_BYTES):
        proto = onnx.load_model(path)
        onnx.save_model(proto, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)


def _name_data_file(staged: Path, target: Path) -> str | None:
    """Give the data file that torch wrote a name made of its content, and tell the model.

    So a graph can never be found beside weights that are not its own.
    """
    written = staged.with_name(f"{staged.name}.data")
    if not written.exists():
        return None
    with written.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    name = artifact.data_file_name(target, digest)
    written.rename(written.with_name(name))
    proto = onnx.load_model(staged, load_external_data=False)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = name
    staged.write_bytes(proto.SerializeToString())
    return name


@final
class HierarchyExporter:
    """Exports with one set of options; see `export_model` for what they are."""

    def __init__(self, strategy: str = AUTO, **options: Any) -> None:
        self._options = {"strategy": strategy, **options}

    def export(self, model: torch.nn.Module, inputs: object, path: str | Path, **options: Any) -> ExportResult:
        """Export a model; `options` win over those of the exporter."""
        return export_model(model, inputs, path, **{**self._options, **options})


@final
class UnifiedExporter:
    """Exports with whatever strategy serves the model."""

    def __init__(self, strategy: str = AUTO, **options: Any) -> None:
        self._exporter = HierarchyExporter(strategy, **options)

    def export(self, model: torch.nn.Module, inputs: object, path: str | Path, **options: Any) -> ExportResult:
        """Export a model; `options` win over those of the exporter."""
        return self._exporter.export(model, inputs, path, **options)


@final
class FXHierarchyExporter:
    """Exports with the `fx` strategy."""

    def __init__(self, **options: Any) -> None:
        self._exporter = HierarchyExporter("fx", **options)

    def export(self, model: torch.nn.Module, inputs: object, path: str | Path, **options: Any) -> ExportResult:
        """Export a model; `options` win over those of the exporter."""
        return self._exporter.export(model, inputs, path, **options)


@final
class HTPHierarchyExporter:
    """Exports with the `htp` strategy."""

    def __init__(self, **options: Any) -> None:
        self._exporter = HierarchyExporter("htp", **options)

    def export(self, model: torch.nn.Module, inputs: object, path: str | Path, **options: Any) -> ExportResult:
        """Export a model; `options` win over those of the exporter."""
        return self._exporter.export(model, inputs, path, **options)


@final
class UsageBasedExporter:
    """Exports with the `usage_based` strategy."""

    def __init__(self, **options: Any) -> None:
        self._exporter = HierarchyExporter("usage_based", **options)

    def export(self, model: torch.nn.Module, inputs: object, path: str | Path, **options: Any) -> ExportResult:
        """Export a model; `options` win over those of the exporter."""
        return self._exporter.export(model, inputs, path, **options)
