"""Compare each module call with PyTorch: as an ONNX model of its own, and in the run of the full ONNX model."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir
import torch

from modelexport.analysis import CallVerification, Difference, TensorVerification, VerificationReport
from modelexport.analysis.extraction import ExtractionPlan, Extractor, HierarchySource, ModelSource, Port
from modelexport.analysis.query import select_calls
from modelexport.errors import ExtractionError, InputError, OnnxRunError
from modelexport.gc_pause import collect_recent, gc_paused
from modelexport.hierarchy import CHECK_LEVELS, ROOT_CALL, CallRecord, CheckOutcome, FileCheck
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits
from modelexport.ort import PreparedModel, Runner, external_folder, prepared, require_onnxruntime
from modelexport.storage import ModelFile
from modelexport.torch_support import normalize_inputs
from modelexport.verification.difference import OutputPair, Tolerance, compare, is_permuted, precisions_of
from modelexport.verification.file_check import FileChecker
from modelexport.verification.model_results import Result, compare_outputs
from modelexport.verification.onnx_run import FullModelRun, GraphInputs
from modelexport.verification.other_weights import refuse_other_weights
from modelexport.verification.pytorch_run import (
    BoundaryKey,
    BoundaryRecorder,
    BoundaryRecording,
    Direction,
    control_flow_call,
)
from modelexport.verification.verdicts import (
    excuse_nondeterminism,
    excuse_permutations,
    excuse_rounding,
    name_sources,
    verdict_of,
    worst,
    worst_first,
)

DEFAULT_MEMORY_BYTES = 1 << 30

# Called with the number of calls done, the number of all calls, and the id of the next.
VerificationProgress = Callable[[int, int, str], None]


def verify_modules(
    path_or_model: ModelSource,
    model: torch.nn.Module,
    example_inputs: object,
    *,
    kwargs: Mapping[str, Any] | None = None,
    hierarchy: HierarchySource | None = None,
    select: str | None = None,
    probes: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    limits: RunLimits = DEFAULT_RUN_LIMITS,
    progress: VerificationProgress | None = None,
) -> VerificationReport:
    """Compare every module call of an exported model with PyTorch.

    Each call is extracted as an ONNX model and runs on the inputs of the PyTorch module. The difference between its
    outputs and those of the PyTorch module is the error that the call introduces. The full ONNX model runs too: the
    difference between its tensors and the outputs of the extracted model is the error that the call inherits.

    Args:
        path_or_model: The exported file, the result of `modelexport.load`, or the ONNX model.
        model: The PyTorch model it was exported from. It runs in evaluation mode and is not changed.
        example_inputs: The inputs: a tensor, tuple, list or dict, as for `export_model`.
        kwargs: Additional keyword arguments of the model.
        hierarchy: The document, its content, or the path of the sidecar; None uses the document of the file.
        select: A selector of the calls to compare; None for all.
        probes: With more than 0, the outputs of the file are also compared at other sizes of its dynamic axes, and on
            so many inputs with other values, which are derived from the example inputs.
        rtol: The relative tolerance; None for 1e-3, or more for coarser element types.
        atol: The absolute tolerance; None for 1e-5, or more for coarser element types.
        memory_bytes: How many bytes of inputs and outputs to keep at a time. The PyTorch model runs once for each group
            of calls that fits.
        limits: The limits of one run in onnxruntime; a module that exceeds them has the verdict ``failed``.
        progress: Called before each call is compared.

    Returns:
        A record for each call, the worst first. ``assert report.passed, str(report)`` is all that a test needs.

    Raises:
        InputError: The model, the inputs or the hierarchy do not match the file, or onnxruntime is not installed.
        FileFormatError: The file is not an ONNX model, or its sidecar is damaged.
        SelectorError: The selector is invalid, or selects nothing.
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"a file is compared with a torch.nn.Module, not with a {type(model).__name__}")
    for name, number in (("rtol", rtol), ("atol", atol)):
        if number is not None and not 0 <= number < float("inf"):
            raise InputError(f"{name} is {number}: a tolerance is a finite number that is not negative")
    args, named = normalize_inputs(example_inputs, kwargs, model)
    require_onnxruntime()
    extractor = Extractor(path_or_model, hierarchy)
    with gc_paused(), Runner(limits, threads=torch.get_num_threads()) as runner, prepared(extractor.model) as ready:
        verification = _Verification(extractor, ready, model, args, named, Tolerance(rtol, atol), runner)
        found = verification.verify(select, memory_bytes, progress or (lambda done, total, call: None))
        path = path_or_model.path if isinstance(path_or_model, ModelFile) else path_or_model
        if not isinstance(path, str | Path):
            path = ""
        check = _check_on_probes(Path(path), extractor, model, args, named, probes, limits) if probes else None
    return msgspec.structs.replace(found, file=str(path), check=check)


def _check_on_probes(
    path: Path,
    extractor: Extractor,
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    probes: int,
    limits: RunLimits,
) -> FileCheck:
    """The check of a file on other inputs than the example, with the first module that diverges where it is wrong."""
    if not path.is_file():
        raise InputError("probes run the file as its users do: give the path of the file")
    with FileChecker(model, args, kwargs, level=CHECK_LEVELS[0], most_bytes=sys.maxsize, limits=limits) as checker:
        check, inputs = checker.check(path, extractor.model, extractor.document, probes=probes)
        if check.outcome is not CheckOutcome.DIFFERENT:
            return check
        return checker.with_origin(check, inputs, path, extractor.document)


@dataclasses.dataclass
class _Task:
    """A call to compare, with the plan of its extraction or the refusal, and the tensors that the comparison needs.

    Attributes:
        keys: Its inputs and outputs in PyTorch's run.
        tensors: The tensors of the full ONNX run.
        captured: The tensors it consumes besides its arguments, each with an input or output of PyTorch's run that
            has its content.
    """

    call: CallRecord
    plan: ExtractionPlan | None = None
    refusal: ExtractionError | None = None
    keys: list[BoundaryKey] = dataclasses.field(default_factory=list)
    tensors: list[str] = dataclasses.field(default_factory=list)
    captured: dict[str, BoundaryKey] = dataclasses.field(default_factory=dict)


class _Verification:
    def __init__(
        self,
        extractor: Extractor,
        ready: PreparedModel,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        tolerance: Tolerance,
        runner: Runner,
    ) -> None:
        self._extractor, self._document, self._model = extractor, extractor.document, extractor.model
        if not any(call.inputs or call.outputs for call in self._document.calls):
            raise InputError(
                f"the inputs and outputs of the modules are not recorded ({self._extractor.missing}), and modules are "
                "compared by these: keep the sidecar that export or tag wrote beside the file"
            )
        self._calls = {call.id: call for call in self._document.calls}
        self._classes = {module.path: module.class_name for module in self._document.modules}
        self._folder = external_folder(self._model)
        self._tolerance = tolerance
        self._precisions = precisions_of(self._model.graph)
        self._onnx_runner = runner
        self._recorder = BoundaryRecorder(model, self._document, args, kwargs)
        self._observed = self._recorder.run()
        refuse_other_weights(self._model.graph, self._document, model)
        self._ids_in_run, self._unmatched = self._match_calls()
        input_names = [value.name or "" for value in self._model.graph.inputs]
        inputs = GraphInputs(self._document, model, args, kwargs, input_names)
        self._full_run = FullModelRun(self._model, ready, inputs)
        self._outputs = [value.name or "" for value in self._model.graph.outputs]
        # For each tensor of the graph an input or output of PyTorch's run with its content.
        self._keys = {
            tensor.tensor: self._key(call, direction, tensor.name)
            for call in self._document.calls
            for direction, boundary in ((Direction.OUTPUT, call.outputs), (Direction.INPUT, call.inputs))
            for tensor in boundary
            if tensor.tensor is not None and self._key(call, direction, tensor.name) in self._observed.tensors
        }

    def verify(self, select: str | None, memory_bytes: int, progress: VerificationProgress) -> VerificationReport:
        document = self._document
        chosen = document.calls if select is None else select_calls(document, select)
        tasks = [self._task(call) for call in chosen]
        records: list[CallVerification] = []
        permuted: set[str] = set()
        for group in _groups(tasks, self._observed, memory_bytes):
            run = self._recorder.run({key for task in group for key in (*task.keys, *task.captured.values())})
            full = self._full_run.fetch(self._onnx_runner, (tensor for task in group for tensor in task.tensors))
            found: list[CallVerification] = []
            for task in group:
                progress(len(records) + len(found), len(tasks), task.call.id)
                record, is_permutation = self._compare(task, run, full)
                found.append(record)
                collect_recent()
                if is_permutation:
                    permuted.add(task.call.id)
            found = excuse_nondeterminism(found, self._id_in_run, run, self._recorder.run, self._tolerance)
            # A tolerance that the user gives is what counts.
            if self._tolerance == Tolerance():
                found = excuse_rounding(found, self._id_in_run, run, self._run_rounded, self._tolerance)
            records += found
        progress(len(tasks), len(tasks), "")
        excused = tuple(excuse_permutations(records, document, permuted, self._compare_unselected))
        return VerificationReport(
            calls=tuple(sorted(name_sources(excused, document), key=worst_first)),
            rtol=self._tolerance.rtol,
            atol=self._tolerance.atol,
            whole_run_error=self._full_run.error,
            forward_passes=self._recorder.passes,
            precisions=tuple(sorted(self._precisions)),
            graph_hash=document.graph_hash,
        )

    def _run_rounded(self, keep: Collection[BoundaryKey], units: int) -> BoundaryRecording:
        """PyTorch's run where the results of modules change by some units in the last place."""
        try:
            return self._recorder.run(keep, rounding=units)
        except InputError:  # a model may check its values
            return BoundaryRecording()

    def _compare_unselected(self, call_id: str) -> tuple[CallVerification, bool]:
        """Compare a call that is not selected, but encloses a selected one."""
        task = self._task(self._calls[call_id])
        run = self._recorder.run({*task.keys, *task.captured.values()})
        return self._compare(task, run, self._full_run.fetch(self._onnx_runner, task.tensors))

    def _task(self, call: CallRecord) -> _Task:
        task = _Task(call)
        if call.id in self._unmatched:
            task.refusal = ExtractionError(call.id, "not_run", self._unmatched[call.id])
            return task
        if call.id == str(ROOT_CALL):
            # The whole model needs no extraction, and its outputs are known by their positions.
            task.keys = [self._key(call, Direction.OUTPUT, name) for name, _ in self._observed.results]
            task.tensors = self._outputs
            return task
        boundary = [(tensor.name, tensor.tensor) for tensor in call.outputs]
        # A module may receive a tensor during export and None in this run, such as an optional mask.
        recorded = {tensor.name for tensor in call.inputs}
        try:
            plan = self._extractor.plan(call)
        except ExtractionError as error:
            task.refusal = error
        else:
            task.plan = plan
            boundary = [(tensor.name, tensor.value.name) for tensor in plan.outputs]
            for tensor in plan.inputs:
                name, key = tensor.value.name or "", self._key(call, Direction.INPUT, tensor.name)
                if tensor.is_argument and (key in self._observed.tensors or tensor.name not in recorded):
                    task.keys.append(key)
                elif name in self._keys:
                    task.captured[name] = self._keys[name]
                elif self._full_run.has(name):
                    task.tensors.append(name)
        for name, tensor_name in boundary:
            task.keys.append(self._key(call, Direction.OUTPUT, name))
            if tensor_name is not None and self._full_run.has(tensor_name):
                task.tensors.append(tensor_name)
        return task

    def _match_calls(self) -> tuple[dict[str, str], dict[str, str]]:
        """The ids that the document's calls have in PyTorch's run, and why some have none.

        Exporters number the calls in branches and loops after the others, once per subgraph. PyTorch runs each any
        number of times, or not at all.
        """
        found: dict[str, str] = {}
        unmatched: dict[str, str] = {}
        exported = Counter(call.path for call in self._document.calls)
        for call in self._document.calls:
            outside, inside = self._observed.calls[call.path], self._observed.control_flow_calls[call.path]
            if call.index < outside <= exported[call.path]:
                found[call.id] = call.id
            elif not outside + inside:
                unmatched[call.id] = "PyTorch did not call this module on these inputs: it may be in a branch not taken"
            elif exported[call.path] - outside == 1 and inside:
                found[call.id] = control_flow_call(call.path)
            else:
                unmatched[call.id] = (
                    f"PyTorch called this module {outside + inside} times on these inputs, and the export has "
                    f"{exported[call.path]} calls: they cannot be matched"
                )
        return found, unmatched

    def _id_in_run(self, call: str) -> str:
        """The id that a call has in PyTorch's run."""
        return self._ids_in_run.get(call, call)

    def _key(self, call: CallRecord, direction: Direction, name: str) -> BoundaryKey:
        return BoundaryKey(self._id_in_run(call.id), direction, name)

    def _compare(
        self, task: _Task, run: BoundaryRecording, full: Mapping[str, np.ndarray]
    ) -> tuple[CallVerification, bool]:
        """Compare a call; also returns whether all outputs that are out of tolerance are only permuted."""
        call, refusal = task.call, task.refusal
        if call.id == str(ROOT_CALL) and refusal is None:
            return self._compare_model(call, run, full), False
        reason, explanation = (refusal.reason, refusal.explanation) if refusal is not None else ("", "")
        notes: tuple[str, ...] = ()
        outputs: Sequence[tuple[str, str | None]] = [(tensor.name, tensor.tensor) for tensor in call.outputs]
        alone: dict[str, np.ndarray] = {}
        if task.plan is not None:
            try:
                submodel = self._extractor.extract(task.plan)
                notes = submodel.notes
                outputs = [(port.argument or port.name, port.tensor) for port in submodel.outputs]
                feeds, feed_notes = self._feeds(task, submodel.inputs, run, full)
                notes += feed_notes
                ready = PreparedModel(ir.to_proto(submodel.model), self._folder)
                found = dict(ready.tensors(self._onnx_runner, feeds))
                alone = {
                    name: found[port.name]
                    for (name, _), port in zip(outputs, submodel.outputs, strict=True)
                    if port.name in found
                }
            except OnnxRunError as error:
                reason, explanation = "failed", f"onnxruntime cannot run it alone: {error}"
            except ExtractionError as error:
                reason, explanation = error.reason, error.explanation
        tensors, is_permutation = self._compare_outputs(call, task.plan, outputs, alone, run, full)
        if not reason and not any(tensor.introduced for tensor in tensors):
            reason, explanation = "no_result", "none of its outputs is in the graph"
        introduced, inherited, total = (
            worst(getattr(tensor, kind) for tensor in tensors) for kind in ("introduced", "inherited", "total")
        )
        unreadable = [why for key, why in run.unreadable.items() if key.call == self._ids_in_run.get(call.id)]
        record = CallVerification(
            call=call.id,
            tag=call.tag,
            class_name=self._classes.get(call.path, ""),
            verdict=verdict_of(reason, introduced, total),
            introduced=introduced,
            inherited=inherited,
            total=total,
            reason=reason,
            explanation=explanation,
            fused_with=refusal.fused_with if refusal is not None else (),
            tensors=tensors,
            notes=(*notes, *unreadable),
        )
        return record, is_permutation

    def _compare_model(
        self, call: CallRecord, run: BoundaryRecording, full: Mapping[str, np.ndarray]
    ) -> CallVerification:
        """Compare the outputs of the full ONNX run with what the model returned."""
        keys = [(self._key(call, Direction.OUTPUT, name), is_number) for name, is_number in self._observed.results]
        results = [
            Result(key.name, run.values[key], run.tensors[key].dtype, is_number)
            for key, is_number in keys
            if key in run.values
        ]
        # Without the content of a result, the positions of the others are not known.
        compared = compare_outputs(self._outputs, full, results, self._tolerance, self._precisions, any_float=True)
        outputs = list(compared) if len(results) == len(keys) else []
        tensors = tuple(
            TensorVerification(name, tensor, result.dtype if result else "", introduced=difference, total=difference)
            for name, tensor, result, difference in outputs
        )
        found = worst(tensor.total for tensor in tensors)
        missing = [tensor.tensor or tensor.name for tensor in tensors if tensor.total is None]
        reason, explanation = "", ""
        if self._full_run.error:
            reason, explanation = "failed", self._full_run.error
        elif missing or not tensors:
            reason, explanation = "not_compared", f"not compared: {', '.join(missing) or 'the outputs of the model'}"
        is_known = not reason or (found is not None and found.is_out)
        return CallVerification(
            call=call.id,
            tag=call.tag,
            class_name=self._classes.get(call.path, ""),
            verdict=verdict_of(reason, found, found) if is_known else verdict_of(reason, None, None),
            introduced=found,
            total=found,
            reason=reason,
            explanation=explanation,
            tensors=tensors,
            notes=tuple(run.unreadable[key] for key, _ in keys if key in run.unreadable),
        )

    def _feeds(
        self,
        task: _Task,
        ports: Sequence[Port],
        run: BoundaryRecording,
        full: Mapping[str, np.ndarray],
    ) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        """The inputs of a submodel, with a note for each that is not from PyTorch's run."""
        feeds: dict[str, np.ndarray] = {}
        notes: list[str] = []
        for port in ports:
            what = f"its argument {port.argument!r}" if port.argument is not None else f"{port.tensor!r}"
            key = self._key(task.call, Direction.INPUT, port.argument or "")
            array = run.values.get(key if key in task.keys else task.captured.get(port.tensor, key))
            if array is None and key not in task.keys:
                array = full.get(port.tensor)
                notes.append(f"{what} is not in PyTorch's run: taken from the full ONNX run")
            if array is None:
                raise ExtractionError(task.call.id, "unknown_boundary", f"{what} is not in PyTorch's run")
            feeds[port.name] = array
        return feeds, tuple(notes)

    def _compare_outputs(
        self,
        call: CallRecord,
        plan: ExtractionPlan | None,
        outputs: Iterable[tuple[str, str | None]],
        alone: Mapping[str, np.ndarray],
        run: BoundaryRecording,
        full: Mapping[str, np.ndarray],
    ) -> tuple[tuple[TensorVerification, ...], bool]:
        found = []
        out: dict[str, list[OutputPair]] = {"introduced": [], "total": []}
        # The full run may have lost precision in any node.
        own_types = self._precisions if plan is None else precisions_of(plan.slice.nodes)
        for name, tensor in outputs:
            key = self._key(call, Direction.OUTPUT, name)
            reference = run.values.get(key)
            if reference is None:
                continue
            dtype = run.tensors[key].dtype
            own, in_full_run = alone.get(name), full.get(tensor or "")
            pairs = {
                "introduced": (own, reference, (dtype, *own_types)),
                "inherited": (in_full_run, own, (dtype, *self._precisions)),
                "total": (in_full_run, reference, (dtype, *self._precisions)),
            }
            differences: dict[str, Difference] = {}
            for kind, (value, other, types) in pairs.items():
                if value is not None and other is not None:
                    differences[kind] = compare(value, other, self._tolerance, *types)
                    if kind in out and differences[kind].is_out:
                        out[kind].append(OutputPair(value, other, types))
            found.append(TensorVerification(name, tensor, dtype, **differences))
        wrong = [pairs for pairs in out.values() if pairs]
        return tuple(found), bool(wrong) and all(is_permuted(pairs, self._tolerance) for pairs in wrong)


def _groups(tasks: Iterable[_Task], run: BoundaryRecording, memory_bytes: int) -> Iterator[list[_Task]]:
    """The tasks in their order, in groups whose tensors fit into memory; one that does not fit is a group alone."""
    group: list[_Task] = []
    group_sizes: dict[object, int] = {}
    for task in tasks:
        sizes: dict[object, int] = {}
        for key in (*task.keys, *task.captured.values()):
            observed = run.tensors.get(key)
            if observed is not None:
                sizes[observed.number] = observed.nbytes
                if key.direction is Direction.OUTPUT:
                    # The ONNX run returns a tensor of the same size.
                    sizes["onnx", observed.number] = observed.nbytes
        if group and sum((group_sizes | sizes).values()) > memory_bytes:
            yield group
            group, group_sizes = [], {}
        group.append(task)
        group_sizes |= sizes
    if group:
        yield group
