"""`export_model`, the export pipeline as a list of steps, and the exporter classes around it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

import msgspec
import onnx_ir as ir
import torch

from modelexport.attempt_report import AttemptReport
from modelexport.capture import Capture, DynamicAxes, check_forward, check_signature, read_module_tree
from modelexport.errors import ContractError, InputError, ModelExportError
from modelexport.exporting.export_arguments import (
    candidates,
    check_level,
    check_model,
    check_options,
    check_targets,
    inference_policy,
)
from modelexport.exporting.export_writer import StagedExport, TaggedModel, staged_export
from modelexport.exporting.progress import Observer, Pipeline
from modelexport.exporting.result import ExportResult
from modelexport.gc_pause import gc_paused
from modelexport.graph import graph_hash, nodes_with_ids, operation, tensors_with_ids
from modelexport.hierarchy import (
    DEFAULT_CHECK_BYTES,
    Attribution,
    Boundaries,
    CheckOutcome,
    FileCheck,
    HierarchyDocument,
    TagView,
)
from modelexport.ownership import InferencePolicy, Projection, add_contexts, infer_missing, project
from modelexport.storage import build_document, remove_source_references, sidecar_path, staged_text, write_stores
from modelexport.strategies import (
    AUTO,
    DEFAULT_TIMEOUT,
    Attempts,
    Candidate,
    Captured,
    CaptureRequest,
    FxStrategy,
    HtpStrategy,
    StrategyRegistry,
    UsageBasedStrategy,
    capture_model,
)
from modelexport.torch_support import CopyOnWrite, flattened_names, normalize_inputs

if TYPE_CHECKING:
    from modelexport.verification import FileChecker

STEPS = ("check", "capture", "attribute", "project", "document", "write", "run")

# The time for finding the module in which the results of a wrong file begin to differ.
_ORIGIN_SECONDS = 120.0


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
        allow_specialization: Fall back to tracing also where the model's Python code depends on values of its inputs.
            These values then become constants of the example inputs; the notes of the result name the places.
        timeout: Seconds for all attempts together, None for no limit. When they are used up, no further strategy,
            exporter or variant is tried; a running attempt is not interrupted. `result.attempts` lists all.
        check: ``"run"``: onnxruntime loads the file and runs it on the example inputs, and its results are compared
            with PyTorch's. A file that fails is not used if another attempt gives a better one; `result.check` says
            what was shown. ``"load"`` only loads it, ``"off"`` does neither. None for the environment variable
            MODELEXPORT_CHECK, or ``"run"``. Without onnxruntime nothing is checked, and `result.check` says so.
        check_bytes: Files with more bytes of weights are loaded and not run.
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
        level = check_level(check, check_bytes)
        target, graph_files = check_targets(output_path, {"fx": fx_graph_path, "jit": jit_graph_path}, overwrite)
        view = TagView.create(torch_nn_exceptions, include, exclude)
        check_model(model)
        policy = inference_policy(model, boundaries, advanced_resolution)
        tried = candidates(registry, strategy, exporter, model, dynamic, torch_options)
        check_options(torch_options, dynamic)
        options = {**torch_options, "optimize": optimize, "verbose": verbose}
        request, notes = _request(model, example_inputs, options, training, allow_specialization)
    attempts = Attempts(timeout)
    writing = {"external_data": external_data, "overwrite": overwrite, "options": torch_options}
    has_weights = torch_options.get("export_params", True)
    with _checker(request, level, check_bytes if has_weights else None) as checker:
        export = _Export(pipeline, attempts, policy, view, private, notes, target, graph_files, writing, checker)
        return export.run(request, tried, dynamic)


def _checker(request: CaptureRequest, level: str, most_bytes: int | None) -> FileChecker:
    # Imported here so that other parts of the package load faster.
    from modelexport.verification import FileChecker

    return FileChecker(
        request.model, request.args, request.kwargs, level=level, most_bytes=most_bytes, training=request.training
    )


@dataclasses.dataclass(frozen=True)
class _Built:
    """A captured graph with its owners, ready to be written."""

    captured: Captured
    document: HierarchyDocument
    tagged: TaggedModel
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Export:
    """One export: builds, writes and checks one attempt after the other until a file is accepted."""

    pipeline: Pipeline
    attempts: Attempts
    policy: InferencePolicy
    view: TagView
    private: bool
    notes: tuple[str, ...]
    target: Path
    graph_files: Mapping[str, Path]
    writing: Mapping[str, Any]
    checker: FileChecker
    # A note on each file that was written and not used.
    rejections: list[str] = dataclasses.field(default_factory=list)

    def run(self, request: CaptureRequest, tried: Sequence[Candidate], dynamic: DynamicAxes | None) -> ExportResult:
        """Write the first file that the check accepts; if there is none, the best."""
        self.checker.start()
        best: tuple[_Built, FileCheck, AttemptReport] | None = None
        try:
            for captured in self._captures(request, tried, dynamic):
                built = self._build(captured)
                with self._staged(built) as staged:
                    with self.pipeline.step("run") as step:
                        found = self.checker.check(staged.path, captured.capture.model, built.document)
                        step.detail = found.outcome.value
                    if self.checker.accepts(found):
                        return self._commit(built, staged, found)
                rejected = self.attempts.reject_last(str(found))
                self.rejections.append(f"the file of {rejected.name} was not used: {found}")
                if best is None or found.rank < best[1].rank:
                    best = built, found, rejected
        except ModelExportError:
            if best is None:
                raise
        if best is None:
            raise ContractError("no attempt was made: please report this")
        built, found, attempt = best
        self.attempts.choose(attempt)
        self.rejections.remove(f"the file of {attempt.name} was not used: {found}")
        with self._staged(built) as staged:
            if found.outcome is CheckOutcome.DIFFERENT:
                with self.pipeline.step("run"):
                    origin = self.checker.find_origin(staged.path, built.document, _ORIGIN_SECONDS)
                found = msgspec.structs.replace(found, call=origin)
            return self._commit(built, staged, found)

    def _captures(
        self, request: CaptureRequest, tried: Sequence[Candidate], dynamic: DynamicAxes | None
    ) -> Iterator[Captured]:
        """The captures of all attempts, without those in which an output has the name of another tensor."""
        captures = capture_model(request, tried, dynamic, self.attempts)
        while True:
            with self.pipeline.step("capture") as step:
                captured = next(captures, None)
                if captured is None:
                    return
                taken = _taken_names(captured.capture.model.graph).intersection(request.result_names)
                if taken:
                    # torch gives an output its name even if another tensor has it already: such a file is invalid.
                    names = ", ".join(sorted(taken))
                    self.attempts.reject_last(f"other tensors have the names of its outputs: {names}")
                    request = dataclasses.replace(request, result_names=_prefixed(request.result_names, taken))
                    captures = capture_model(request, tried, dynamic, self.attempts)
                    continue
                capture = captured.capture
                step.detail = f"{capture.exporter}, {len(capture.calls)} calls"
                _check_graph_kinds(self.graph_files, capture, captured.attempt)
            yield captured

    def _build(self, captured: Captured) -> _Built:
        capture = captured.capture
        with self.pipeline.step("attribute"):
            owners = infer_missing(capture.original_graph, capture.recorded, capture.calls, self.policy)
        with self.pipeline.step("project"):
            projection = _project(capture, owners, self.policy)
        with self.pipeline.step("document") as step:
            opset_notes = _opset_notes(self.writing["options"].get("opset_version"), capture)
            notes = tuple(dict.fromkeys((*self.notes, *captured.notes, *capture.notes, *opset_notes)))
            # Notes name source lines of the model.
            shown = () if self.private else notes
            document = _build_document(capture, projection, captured.attempt.strategy, self.view, shown)
            step.detail = f"{len(document.nodes)} nodes"
            return _Built(captured, document, _tag(capture, document, self.private), notes)

    @contextlib.contextmanager
    def _staged(self, built: _Built) -> Iterator[StagedExport]:
        with contextlib.ExitStack() as stack:
            with self.pipeline.step("write"):
                staged = stack.enter_context(staged_export(built.tagged, self.target, **self.writing))
                staged.write_sidecar(built.document)
            yield staged

    def _commit(self, built: _Built, staged: StagedExport, check: FileCheck) -> ExportResult:
        # The reason can contain paths of this machine.
        shown = msgspec.structs.replace(check, reason="") if self.private else check
        rejections = () if self.private else self.rejections
        recorded = None if self.checker.is_off else shown
        document = msgspec.structs.replace(built.document, check=recorded, notes=(*built.document.notes, *rejections))
        staged.write_sidecar(document)
        with contextlib.ExitStack() as stack:
            for path in self.graph_files.values():
                stack.enter_context(staged_text(path, built.captured.capture.graph_text()))
            files = staged.commit()
        return ExportResult(
            onnx_path=self.target,
            sidecar_path=sidecar_path(self.target),
            files=(*files, *self.graph_files.values()),
            document=document,
            attempts=tuple(self.attempts.reports),
            steps=tuple(self.pipeline.reports),
            dynamic_axes=built.captured.dynamic_axes,
            notes=(*built.notes, *self.rejections),
            check=check,
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
        result_names = _prefixed(names, {*arguments, *(options.get("input_names") or ()), *model.state_dict()})
    request = CaptureRequest(
        model, args, kwargs, options, "", training, specialize, written=written, result_names=result_names
    )
    return request, notes


def _prefixed(names: Iterable[str], taken: Collection[str]) -> tuple[str, ...]:
    return tuple(f"output.{name}" if name in taken else name for name in names)


def _taken_names(graph: ir.Graph) -> set[str]:
    """The names of all tensors of the main graph that are not its outputs."""
    outputs = {id(value) for value in graph.outputs}
    produced = (value for node in graph for value in node.outputs)
    return {
        value.name or ""
        for value in (*graph.inputs, *graph.initializers.values(), *produced)
        if id(value) not in outputs
    }


def _opset_notes(wanted: int | None, capture: Capture) -> tuple[str, ...]:
    """torch exports with its own opset, and keeps it where it cannot convert the graph to the requested one."""
    written = capture.model.opset_imports.get("")
    if wanted is None or written == wanted:
        return ()
    note = (
        f"the file has opset {written} instead of {wanted}, to which the {capture.exporter} exporter cannot convert it"
    )
    return (f"{note}. The TorchScript exporter (strategy htp) writes older opsets itself",)


def _check_graph_kinds(kinds: Iterable[str], capture: Capture, attempt: AttemptReport) -> None:
    for kind in kinds:
        if kind != capture.graph_kind:
            raise InputError(
                f"there is no {kind} graph to write: strategy {attempt.strategy!r} does not trace one; "
                f"choose strategy {'htp' if kind == 'jit' else 'fx'!r}, or omit {kind}_graph_path"
            )


@gc_paused()
def _project(capture: Capture, owners: Mapping[ir.Node, Attribution], policy: InferencePolicy) -> Projection:
    """Project the owners of the original graph onto the final graph."""
    if capture.original_graph is capture.model:
        return Projection(add_contexts(capture.model, owners) if policy.advanced else owners, capture.calls)
    return project(
        capture.original_graph, owners, capture.model, capture.calls, recorded=capture.recorded_in_model, policy=policy
    )


@gc_paused()
def _build_document(
    capture: Capture, projection: Projection, strategy: str, view: TagView, notes: tuple[str, ...]
) -> HierarchyDocument:
    model, final = capture.model, projection.attributions
    nodes = nodes_with_ids(model)
    unowned = [node_id for node_id, node in nodes if node not in final]
    if unowned:
        raise ContractError(f"{len(unowned)} nodes have no owner, {unowned[0]!r} first: please report this")
    return build_document(
        strategy=strategy,
        exporter=capture.exporter,
        graph_hash=graph_hash(model),
        view=view,
        tree=capture.tree,
        calls=projection.calls,
        nodes=[(node_id, operation(node), final[node]) for node_id, node in nodes],
        graph_tensors=tensors_with_ids(model, nodes),
        folded={name: found.owner for name, found in projection.constants.items()},
        axes=projection.renamed(capture.dynamic_sizes),
        notes=notes,
    )


def _tag(capture: Capture, document: HierarchyDocument, private: bool) -> TaggedModel:
    """Write the document into the metadata of the model, or of the skeleton of the exporter's own file."""
    model = capture.model if capture.file is None else capture.file.skeleton()
    if private:
        remove_source_references(model)
    write_stores(model, document)
    return TaggedModel(model, document, capture.file)


class HierarchyExporter:
    """Exports models with fixed options; see `export_model` for the options.

    Args:
        strategy: The strategy; None for the class's own default.
        **options: Further options of `export_model`.
    """

    default_strategy: ClassVar[str] = AUTO

    def __init__(self, strategy: str | None = None, **options: Any) -> None:
        self._options = {"strategy": self.default_strategy if strategy is None else strategy, **options}

    def export(self, model: torch.nn.Module, inputs: object, path: str | Path, **options: Any) -> ExportResult:
        """Export a model; `options` override those of the exporter."""
        return export_model(model, inputs, path, **{**self._options, **options})


@final
class UnifiedExporter(HierarchyExporter):
    """Exports with the first strategy that succeeds."""


@final
class FXHierarchyExporter(HierarchyExporter):
    """Exports with the `fx` strategy."""

    default_strategy = FxStrategy.name


@final
class HTPHierarchyExporter(HierarchyExporter):
    """Exports with the `htp` strategy."""

    default_strategy = HtpStrategy.name


@final
class UsageBasedExporter(HierarchyExporter):
    """Exports with the `usage_based` strategy."""

    default_strategy = UsageBasedStrategy.name
