"""verify_modules: each module call as an ONNX model against PyTorch, and the whole ONNX run at each boundary."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch

from modelexport.analysis.extraction import ExtractionPlan, Extractor, HierarchySource, ModelSource, Port
from modelexport.analysis.query import select_calls
from modelexport.errors import ExtractionError, InputError, OnnxRunError
from modelexport.hierarchy import CallRecord
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits
from modelexport.ort import PreparedModel, Runner, external_folder, prepared, require_onnxruntime
from modelexport.storage import LoadedModel, load
from modelexport.torch_support import normalize_inputs
from modelexport.verification.difference import Difference, Tolerance, compare
from modelexport.verification.full_model_run import WholeRun
from modelexport.verification.graph_inputs import GraphInputs
from modelexport.verification.module_run import ModuleRun, ModuleRunner, Place, Side, body_call
from modelexport.verification.nondeterminism import without_chance
from modelexport.verification.permuted_outputs import ResultPair, same_in_another_order
from modelexport.verification.report import CallVerification, TensorVerification, VerificationReport, worst_first
from modelexport.verification.verdicts import verdict_of, with_orders, with_sources, worst

DEFAULT_MEMORY_BYTES = 1 << 30
_NO_RESULT = "nothing of what it returned is in the graph"

# How many calls are done, of how many, and which is next.
VerificationProgress = Callable[[int, int, str], None]


def verify_modules(
    path_or_model: ModelSource,
    model: torch.nn.Module,
    example_inputs: object,
    *,
    kwargs: Mapping[str, Any] | None = None,
    hierarchy: HierarchySource | None = None,
    select: str | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    limits: RunLimits = DEFAULT_RUN_LIMITS,
    progress: VerificationProgress | None = None,
) -> VerificationReport:
    """Compare every module call of an exported model with PyTorch.

    Each call is cut out as an ONNX model and run on the tensors that the PyTorch module really got: what it gives,
    against what the module really returned, is the error that it introduces. The whole ONNX model runs too: what its
    results at the call differ from that is the error it inherits.

    Args:
        path_or_model: The exported file, what `modelexport.load` made of it, or the model itself.
        model: The PyTorch model it was exported from. It runs in evaluation mode and stays as it was.
        example_inputs: What it runs on: a tensor, tuple, list or dict, as `export_model` takes them.
        kwargs: Keyword arguments of the model beside these.
        hierarchy: The document, its content, or the sidecar's path; None takes what belongs to the file.
        select: A selector: which calls to compare; None for all.
        rtol: The relative tolerance; None for 1e-3, or what coarser element types ask for.
        atol: The absolute tolerance; None for 1e-5, or what coarser element types ask for.
        memory_bytes: How much of the boundary tensors to hold at a time. PyTorch's model runs once for each such group.
        limits: What one run in onnxruntime may take; a module that takes more is a ``failed`` record.
        progress: Called before each call is compared.

    Returns:
        A record for each call, the worst first. ``assert report.passed, str(report)`` is all that a test needs.

    Raises:
        InputError: The model, the inputs or the hierarchy do not fit the file, or onnxruntime is not installed.
        FileFormatError: The file is no ONNX model, or its sidecar is damaged.
        SelectorError: The selector cannot be read, or picks nothing.
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"a file is compared with a torch.nn.Module, not with a {type(model).__name__}")
    for name, number in (("rtol", rtol), ("atol", atol)):
        if number is not None and not 0 <= number < float("inf"):
            raise InputError(f"{name} is {number}: a tolerance is a number that is not negative")
    args, named = normalize_inputs(example_inputs, kwargs)
    require_onnxruntime()
    source = _opened(path_or_model)
    onnx_model = source.model if isinstance(source, LoadedModel) else source
    with Runner(limits, threads=torch.get_num_threads()) as runner, prepared(onnx_model) as ready:
        verification = _Verification(source, ready, model, args, named, hierarchy, Tolerance(rtol, atol), runner)
        return verification.verify(select, memory_bytes, progress or _silent)


def _opened(source: ModelSource) -> LoadedModel | ir.Model:
    if isinstance(source, onnx.ModelProto):
        return ir.from_proto(source)
    return load(source) if isinstance(source, str | Path) else source


def _silent(done: int, total: int, call: str) -> None:
    pass


@dataclasses.dataclass
class _Task:
    """A call to compare, and what that takes.

    Attributes:
        call: The call.
        plan: How it is extracted to be run alone; None where it cannot be.
        refusal: Why it cannot be run alone.
        places: The tensors of PyTorch's run that it takes.
        tensors: The tensors of the whole ONNX run that it takes.
        elsewhere: What it reads beside its arguments: for each such tensor a place where PyTorch's run shows it.
    """

    call: CallRecord
    plan: ExtractionPlan | None = None
    refusal: ExtractionError | None = None
    places: list[Place] = dataclasses.field(default_factory=list)
    tensors: list[str] = dataclasses.field(default_factory=list)
    elsewhere: dict[str, Place] = dataclasses.field(default_factory=dict)


class _Verification:
    def __init__(
        self,
        source: LoadedModel | ir.Model,
        ready: PreparedModel,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        hierarchy: HierarchySource | None,
        tolerance: Tolerance,
        runner: Runner,
    ) -> None:
        self._extractor = Extractor(source, hierarchy)
        self._document = self._extractor.document
        self._model = source.model if isinstance(source, LoadedModel) else source
        if not any(call.inputs or call.outputs for call in self._document.calls):
            raise InputError(
                f"the arguments and results of the modules are not recorded ({self._extractor.missing}): modules are "
                "compared where those are, so keep the sidecar that export or tag wrote beside the file"
            )
        self._calls = {call.id: call for call in self._document.calls}
        self._classes = {module.path: module.class_name for module in self._document.modules}
        self._folder = source.path.parent if isinstance(source, LoadedModel) else external_folder(self._model)
        self._tolerance = tolerance
        self._onnx_runner = runner
        self._runner = ModuleRunner(model, self._document, args, kwargs)
        self._first = self._runner.run()
        # The calls whose results are the same numbers in another order.
        self._reordered: set[str] = set()
        self._seen_as, self._unmatched = self._identities()
        entering = [value.name or "" for value in self._model.graph.inputs]
        inputs = GraphInputs(self._document, model, args, kwargs, entering)
        self._whole = WholeRun(self._model, ready, inputs)
        self._shown = {
            tensor.tensor: self._place(call, side, tensor.name)
            for call in self._document.calls
            for side, boundary in ((Side.OUTPUT, call.outputs), (Side.INPUT, call.inputs))
            for tensor in boundary
            if tensor.tensor is not None and self._place(call, side, tensor.name) in self._first.seen
        }

    def verify(self, select: str | None, memory_bytes: int, progress: VerificationProgress) -> VerificationReport:
        document = self._document
        chosen = document.calls if select is None else select_calls(document, select)
        tasks = [self._task(call) for call in chosen]
        records: list[CallVerification] = []
        for group in _groups(tasks, self._first, memory_bytes):
            run = self._runner.run({place for task in group for place in (*task.places, *task.elsewhere.values())})
            whole = self._whole.fetch(self._onnx_runner, (tensor for task in group for tensor in task.tensors))
            found: list[CallVerification] = []
            for task in group:
                progress(len(records) + len(found), len(tasks), task.call.id)
                found.append(self._compare(task, run, whole))
            records += without_chance(found, self._identity, run, self._runner.run, self._tolerance)
        progress(len(tasks), len(tasks), "")
        settled = tuple(with_orders(records, document, self._reordered, self._compare_one))
        return VerificationReport(
            calls=tuple(sorted(with_sources(settled, document), key=worst_first)),
            rtol=self._tolerance.rtol,
            atol=self._tolerance.atol,
            whole_run_error=self._whole.error,
            forward_passes=self._runner.passes,
        )

    def _compare_one(self, call_id: str) -> CallVerification:
        """A call that was not asked for."""
        task = self._task(self._calls[call_id])
        run = self._runner.run({*task.places, *task.elsewhere.values()})
        return self._compare(task, run, self._whole.fetch(self._onnx_runner, task.tensors))

    def _task(self, call: CallRecord) -> _Task:
        task = _Task(call)
        if call.id in self._unmatched:
            task.refusal = ExtractionError(call.id, "not_run", self._unmatched[call.id])
            return task
        boundary = [(tensor.name, tensor.tensor) for tensor in call.outputs]
        # A module may be given a tensor when it is exported and none when it runs: a mask that masks nothing, say.
        recorded = {tensor.name for tensor in call.inputs}
        try:
            plan = self._extractor.plan(call)
        except ExtractionError as error:
            task.refusal = error
        else:
            task.plan = plan
            boundary = [(tensor.name, tensor.value.name) for tensor in plan.outputs]
            for tensor in plan.inputs:
                name, place = tensor.value.name or "", self._place(call, Side.INPUT, tensor.name)
                if tensor.is_argument and (place in self._first.seen or tensor.name not in recorded):
                    task.places.append(place)
                elif name in self._shown:
                    task.elsewhere[name] = self._shown[name]
                elif self._whole.has(name):
                    task.tensors.append(name)
        for name, tensor_name in boundary:
            task.places.append(self._place(call, Side.OUTPUT, name))
            if tensor_name is not None and self._whole.has(tensor_name):
                task.tensors.append(tensor_name)
        return task

    def _identities(self) -> tuple[dict[str, str], dict[str, str]]:
        """The calls of PyTorch's run that the document's calls are, and why some are none.

        Exporters number the calls in the bodies of loops and branches after the others, each body once. PyTorch runs
        a body as often as it goes, or not at all.
        """
        found: dict[str, str] = {}
        unmatched: dict[str, str] = {}
        traced = Counter(call.path for call in self._document.calls)
        for call in self._document.calls:
            outside, inside = self._first.calls[call.path], self._first.body_calls[call.path]
            if call.index < outside <= traced[call.path]:
                found[call.id] = call.id
            elif not outside + inside:
                unmatched[call.id] = "PyTorch did not call this module on these inputs: it may be in a branch not taken"
            elif traced[call.path] - outside == 1 and inside:
                found[call.id] = body_call(call.path)
            else:
                unmatched[call.id] = (
                    f"calls of this module: {outside + inside} in PyTorch on these inputs and {traced[call.path]} in "
                    "the export, and nobody knows which is which"
                )
        return found, unmatched

    def _identity(self, call: str) -> str:
        """What the call is in PyTorch's run."""
        return self._seen_as.get(call, call)

    def _place(self, call: CallRecord, side: Side, name: str) -> Place:
        return Place(self._identity(call.id), side, name)

    def _compare(self, task: _Task, run: ModuleRun, whole: Mapping[str, np.ndarray]) -> CallVerification:
        call, refusal = task.call, task.refusal
        reason, explanation = (refusal.reason, refusal.explanation) if refusal is not None else ("", "")
        notes: tuple[str, ...] = ()
        outputs: Sequence[tuple[str, str | None]] = [(tensor.name, tensor.tensor) for tensor in call.outputs]
        alone: dict[str, np.ndarray] = {}
        if task.plan is not None:
            try:
                submodel = self._extractor.extract(task.plan)
                notes = submodel.notes
                outputs = [(port.argument or port.name, port.tensor) for port in submodel.outputs]
                feeds, taken = self._feeds(task, submodel.inputs, run, whole)
                notes += taken
                alone_model = PreparedModel(ir.to_proto(submodel.model), self._folder)
                found = dict(alone_model.tensors(self._onnx_runner, feeds))
                alone = {
                    name: found[port.name]
                    for (name, _), port in zip(outputs, submodel.outputs, strict=True)
                    if port.name in found
                }
            except OnnxRunError as error:
                reason, explanation = "failed", f"onnxruntime cannot run it alone: {error}"
            except ExtractionError as error:
                reason, explanation = error.reason, error.explanation
        tensors = self._tensors(call, outputs, alone, run, whole)
        if not reason and not any(tensor.introduced for tensor in tensors):
            reason, explanation = "no_result", _NO_RESULT
        introduced, inherited, total = (
            worst(getattr(tensor, kind) for tensor in tensors) for kind in ("introduced", "inherited", "total")
        )
        unread = [why for place, why in run.unreadable.items() if place.call == self._seen_as.get(call.id)]
        return CallVerification(
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
            notes=(*notes, *unread),
        )

    def _feeds(
        self,
        task: _Task,
        ports: Sequence[Port],
        run: ModuleRun,
        whole: Mapping[str, np.ndarray],
    ) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        """What a submodel is to be given, with notes on what is not PyTorch's own."""
        feeds: dict[str, np.ndarray] = {}
        notes: list[str] = []
        for port in ports:
            what = f"its argument {port.argument!r}" if port.argument is not None else f"{port.tensor!r}"
            place = self._place(task.call, Side.INPUT, port.argument or "")
            array = run.values.get(place if place in task.places else task.elsewhere.get(port.tensor, place))
            if array is None and place not in task.places:
                array = whole.get(port.tensor)
                notes.append(f"{what} is not in PyTorch's run: taken from the whole ONNX run")
            if array is None:
                raise ExtractionError(task.call.id, "unknown_boundary", f"PyTorch's run does not show {what}")
            feeds[port.name] = array
        return feeds, tuple(notes)

    def _tensors(
        self,
        call: CallRecord,
        outputs: Iterable[tuple[str, str | None]],
        alone: Mapping[str, np.ndarray],
        run: ModuleRun,
        whole: Mapping[str, np.ndarray],
    ) -> tuple[TensorVerification, ...]:
        found = []
        out: dict[str, list[ResultPair]] = {"introduced": [], "total": []}
        for name, tensor in outputs:
            place = self._place(call, Side.OUTPUT, name)
            true = run.values.get(place)
            if true is None:
                continue
            dtype = run.seen[place].dtype
            own, reached = alone.get(name), whole.get(tensor or "")

            def difference(value: np.ndarray | None, reference: np.ndarray | None, dtype: str) -> Difference | None:
                if value is None or reference is None:
                    return None
                return compare(value, reference, self._tolerance, dtype)

            verification = TensorVerification(
                name,
                tensor,
                dtype,
                introduced=difference(own, true, dtype),
                inherited=difference(reached, own, dtype),
                total=difference(reached, true, dtype),
            )
            found.append(verification)
            for kind, value, judged in (
                ("introduced", own, verification.introduced),
                ("total", reached, verification.total),
            ):
                if value is not None and judged is not None and judged.is_out:
                    out[kind].append(ResultPair(value, true, dtype))
        wrong = [pairs for pairs in out.values() if pairs]
        if wrong and all(same_in_another_order(pairs, self._tolerance) for pairs in wrong):
            self._reordered.add(call.id)
        return tuple(found)


def _groups(tasks: Iterable[_Task], run: ModuleRun, memory_bytes: int) -> Iterator[list[_Task]]:
    """The tasks in their order, in groups whose tensors fit; one that is too large for itself alone is a group."""
    group: list[_Task] = []
    held: dict[object, int] = {}
    for task in tasks:
        needs: dict[object, int] = {}
        for place in (*task.places, *task.elsewhere.values()):
            seen = run.seen.get(place)
            if seen is not None:
                needs[seen.number] = seen.nbytes
                if place.side is Side.OUTPUT:
                    # The same comes from the ONNX run.
                    needs["onnx", seen.number] = seen.nbytes
        if group and sum((held | needs).values()) > memory_bytes:
            yield group
            group, held = [], {}
        group.append(task)
        held |= needs
    if group:
        yield group
