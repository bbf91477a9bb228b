"""Check an exported file: onnxruntime loads it, runs it on the example inputs, and gives PyTorch's results."""

from __future__ import annotations

import importlib.util
import math
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import onnx_ir as ir
import torch

from modelexport.analysis import Difference, Verdict
from modelexport.display import with_class
from modelexport.errors import InputError, OnnxRunError, RunLimitError
from modelexport.graph import weight_bytes
from modelexport.hierarchy import CHECK_LEVELS, CheckOutcome, FileCheck, HierarchyDocument
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits
from modelexport.ort import IDLE_RUNNER, FileRun
from modelexport.torch_support import copied_inputs
from modelexport.verification.difference import RARE_FLOATS, Tolerance, compare, precisions_of
from modelexport.verification.model_results import ComparedOutput, Result, compare_outputs, results_of
from modelexport.verification.onnx_run import GraphInputs
from modelexport.verification.probes import DynamicAxes, InputChange, ModelInputs, other_values
from modelexport.verification.pytorch_run import array_of, reference_run, rounded_differently
from modelexport.verification.rounding import ROUNDINGS, Usual, changes_by_rounding, is_explained

_RUN, _LOAD, _OFF = CHECK_LEVELS
# Outputs of a full model add up the rounding errors of all modules.
_TOLERANCE = Tolerance(least_atol=1e-4)
_OTHER_SEED = 1
# The time for finding the module in which the results of a wrong file begin to differ.
_ORIGIN_SECONDS = 120.0
# The outcomes on the example inputs after which other inputs can still show that a file is wrong.
_RAN = (CheckOutcome.EQUAL, CheckOutcome.UNSTABLE, CheckOutcome.NONDETERMINISTIC)
# Of files with more weights than this, nothing stays in memory.
_MOST_KEPT_BYTES = 2**26
_LONGEST_REASON = 200
# The domains of onnxruntime's own operators.
_KNOWN_DOMAINS = re.compile(r"(ai\.onnx(\..*)?|com\.microsoft(\..*)?|com\.ms\..*)?")
# The names of nodes and tensors in onnxruntime's messages.
_IN_QUOTES = re.compile(r"['(]([^'()]+)[')]")


class CheckedFile(NamedTuple):
    """A file to check: its path, the model in it, its document, and the types that it computes with."""

    path: Path
    model: ir.Model
    document: HierarchyDocument
    types: frozenset[str]

    @property
    def outputs(self) -> list[str]:
        """The names of its outputs."""
        return [value.name or "" for value in self.model.graph.outputs]

    @property
    def inputs(self) -> list[ir.Value]:
        """Its inputs."""
        return [value for value in self.model.graph.inputs if not value.is_initializer()]


class FileChecker:
    """Checks the files of one export, all against the same results of PyTorch.

    A context manager: it ends the process of onnxruntime, or keeps it for the next export after small files.

    Args:
        model: The model. It is not changed.
        args: Its positional example inputs.
        kwargs: Its example inputs by keyword.
        level: ``"run"``, ``"load"`` to load files only, or ``"off"``.
        most_bytes: Files with more weights are loaded only; None for files without their weights.
        training: Run the model in its current mode.
        limits: The limits of one run.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        level: str,
        most_bytes: int | None,
        training: bool = False,
        limits: RunLimits = DEFAULT_RUN_LIMITS,
    ) -> None:
        self._model, self._example, self._training = model, ModelInputs(args, kwargs), training
        self._level, self._most_bytes = level, most_bytes
        self._runner = IDLE_RUNNER.take(limits, torch.get_num_threads())
        self._most_seen = 0
        self._reference: tuple[Result, ...] | None = None
        self._reference_problem = ""

    @property
    def is_off(self) -> bool:
        """Whether nothing is checked."""
        return self._level == _OFF

    def __enter__(self) -> FileChecker:
        return self

    def __exit__(self, *raised: object) -> None:
        # The process keeps the memory that large files took.
        if self._most_seen > _MOST_KEPT_BYTES:
            self._runner.__exit__(*raised)
        else:
            IDLE_RUNNER.keep(self._runner)

    def start(self) -> None:
        """Start the process of onnxruntime, which loads while the model is exported."""
        if not self.is_off and _is_installed():
            self._runner.start()

    def check(
        self,
        path: Path,
        model: ir.Model,
        document: HierarchyDocument,
        given_values: Mapping[str, Any] | None = None,
        probes: int = 0,
    ) -> tuple[FileCheck, ModelInputs]:
        """Check a file on the example inputs, on other values, and at other sizes of its dynamic axes.

        Args:
            path: The file.
            model: The model in it.
            document: Its document.
            given_values: Inputs with other values, by keyword, for which the file must be right too.
            probes: The number of inputs with other values to derive from the example.

        Returns:
            The check, and the inputs that its outcome is about.
        """
        example = self._example
        if self.is_off:
            return FileCheck(CheckOutcome.UNCHECKED, "the check is off"), example
        obstacle = self._why_not_loadable(model)
        if obstacle:
            return FileCheck(CheckOutcome.UNCHECKED, obstacle), example
        file = CheckedFile(path, model, document, precisions_of(model.graph))
        self._most_seen = max(self._most_seen, weight_bytes(model))
        found = self._check_on(file, example)
        if found.outcome not in _RAN:
            return found, example
        axes = DynamicAxes(file.inputs, self._graph_inputs(file, example).tensors, example, document.size_ranges)
        given = [InputChange([ModelInputs((), given_values, "other values")])] if given_values else []
        found, inputs = self._check_changes(file, found, [*given, *axes.changes(), *other_values(example, probes)])
        outside = () if found.is_wrong else tuple(self._outside(file, axes))
        return msgspec.structs.replace(found, outside=outside), inputs

    def _outside(self, file: CheckedFile, axes: DynamicAxes) -> Iterator[str]:
        """What the file does just outside of the sizes for which it is valid, where PyTorch takes them."""
        for inputs, limits in axes.outside():
            results, _ = self._results(inputs)
            if results is not None:
                found = self._check_on(file, inputs, results)
                says = "fails in onnxruntime" if found.outcome is CheckOutcome.RUN_FAILED else f"is {found.outcome}"
                yield f"with {inputs.description}, outside of {limits}, it {says}"

    def _why_not_loadable(self, model: ir.Model) -> str:
        if not _is_installed():
            return "onnxruntime is not installed (pip install 'modelexport[runtime]')"
        if self._most_bytes is None:
            return "its weights are not in the file (export_params)"
        unknown = _custom_domains(model)
        return f"onnxruntime has no operators of {', '.join(unknown)}" if unknown else ""

    def _check_changes(
        self, file: CheckedFile, equal: FileCheck, changes: Iterable[InputChange]
    ) -> tuple[FileCheck, ModelInputs]:
        """The check of a file that is right on the example inputs, on other inputs too."""
        compared: list[str] = []
        not_compared: list[str] = []
        for change in changes:
            reason = ""
            for inputs in change.tries:
                results, problem = self._results(inputs)
                if results is None:
                    reason = f"PyTorch does not take {inputs.description} ({problem})"
                    continue
                found = self._check_on(file, inputs, results)
                if found.is_wrong:
                    reason = f"with {inputs.description}: {found.reason}"
                    return msgspec.structs.replace(found, reason=reason), inputs
                is_equal = found.outcome is CheckOutcome.EQUAL
                reason = "" if is_equal else f"{inputs.description}: {found}"
                compared += [inputs.description] if is_equal else []
                break
            not_compared += [reason] if reason else []
        found = msgspec.structs.replace(equal, compared=tuple(compared), not_compared=tuple(not_compared))
        return found, self._example

    def _check_on(self, file: CheckedFile, inputs: ModelInputs, results: tuple[Result, ...] | None = None) -> FileCheck:
        """Check a file on one set of inputs; `results` are those of PyTorch, where they are known."""
        try:
            found = self._compare(file, inputs, results)
            if found.is_wrong and self._is_right_unoptimized(file, inputs, results):
                return msgspec.structs.replace(found, outcome=CheckOutcome.EQUAL_UNOPTIMIZED)
            return found
        except (InputError, RunLimitError) as error:
            return FileCheck(CheckOutcome.UNCHECKED, str(error))
        except OnnxRunError as error:
            # Its process ended: whether it was loaded is not known.
            return FileCheck(CheckOutcome.RUN_FAILED, str(error))

    def _compare(self, file: CheckedFile, inputs: ModelInputs, results: tuple[Result, ...] | None) -> FileCheck:
        feeds, obstacle = self._feeds(file, inputs)
        if obstacle:
            run, found = self._runner.run_file(file.path, None, file.outputs)
        else:
            meanwhile = self._run_reference if results is None else None
            run, found = self._runner.run_file(file.path, feeds, file.outputs, meanwhile=meanwhile)
        results = results or self._reference
        is_refused = run.loaded and not obstacle and results is None
        if run.problem and not is_refused:
            return _failure(run, file.model.graph, file.document)
        if obstacle:
            return FileCheck(CheckOutcome.LOADED, obstacle)
        if results is None:
            return FileCheck(CheckOutcome.LOADED, f"PyTorch cannot run the model here ({self._reference_problem})")
        return self._judge(list(compare_outputs(file.outputs, found, results, _TOLERANCE, file.types)), file, inputs)

    def _judge(self, compared: Sequence[ComparedOutput], file: CheckedFile, inputs: ModelInputs) -> FileCheck:
        """The check by the differences of all outputs."""
        out = {i for i, output in enumerate(compared) if output.difference is not None and output.difference.is_out}
        # What PyTorch itself does not reproduce is not an error of the file.
        random = self._changed_by_seed(compared, out, file, inputs) if out else set()
        changes = self._changes_by_rounding(compared, file, inputs) if out - random else {}
        unstable = {i for i in out - random if is_explained(_known(compared[i]), changes.get(i))}
        wrong = out - random - unstable
        missing = [output.tensor or output.name for output in compared if output.difference is None]
        if wrong:
            return _of_outputs(CheckOutcome.DIFFERENT, _reason(_worst(compared, wrong)), compared, wrong, file)
        if missing or not compared:
            reason = f"onnxruntime returns no tensor for {', '.join(missing)}" if missing else "it has no outputs"
            return FileCheck(CheckOutcome.NOT_COMPARED, reason)
        if random:
            reason = f"in PyTorch {', '.join(compared[i].name for i in random)} changes with the random state"
            return _of_outputs(CheckOutcome.NONDETERMINISTIC, reason, compared, random, file)
        if unstable:
            name, change = max(((compared[i].name, changes[i]) for i in unstable), key=lambda pair: pair[1])
            reason = f"{name} changes by {change:.2g} if the results of modules are rounded differently"
            return _of_outputs(CheckOutcome.UNSTABLE, reason, compared, unstable, file)
        return _of_outputs(CheckOutcome.EQUAL, "", compared, range(len(compared)), file)

    def _changed_by_seed(
        self, compared: Sequence[ComparedOutput], out: Collection[int], file: CheckedFile, inputs: ModelInputs
    ) -> set[int]:
        """The results that PyTorch changes with the random state, by position."""
        again, _ = self._results(inputs, _OTHER_SEED)
        return {
            i
            for i, (output, other) in enumerate(zip(compared, again or (), strict=False))
            if i in out
            and (usual := output.result) is not None
            and compare(other.content, usual.content, _TOLERANCE, usual.dtype, *file.types).is_out
        }

    def _changes_by_rounding(
        self, compared: Sequence[ComparedOutput], file: CheckedFile, inputs: ModelInputs
    ) -> dict[int, float]:
        """How much PyTorch's results change if the results of modules are rounded differently, by position."""

        def rounded() -> Iterator[dict[int, np.ndarray]]:
            for units in ROUNDINGS:
                with rounded_differently(self._model, units):
                    # A model may check its values: without results, the file counts as different.
                    changed, _ = self._results(inputs)
                yield {i: result.content for i, result in enumerate(changed or ())}

        usual = {
            i: Usual(output.result.content, output.result.dtype) for i, output in enumerate(compared) if output.result
        }
        return changes_by_rounding(usual, rounded(), _TOLERANCE, file.types)

    def _graph_inputs(self, file: CheckedFile, inputs: ModelInputs) -> GraphInputs:
        names = [value.name or "" for value in file.inputs]
        return GraphInputs(file.document, self._model, inputs.args, inputs.kwargs, names)

    def _feeds(self, file: CheckedFile, inputs: ModelInputs) -> tuple[dict[str, np.ndarray], str]:
        """The inputs of the graph, or why they are unknown."""
        if self._level == _LOAD:
            return {}, "check is 'load'"
        if self._most_bytes is not None and (size := weight_bytes(file.model)) > self._most_bytes:
            return {}, f"its weights have {size:,} bytes, and check_bytes is {self._most_bytes:,}"
        found = self._graph_inputs(file, inputs)
        if found.missing:
            return {}, found.explain()
        feeds: dict[str, np.ndarray] = {}
        for name, tensor in found.tensors.items():
            if _type_name(tensor) in RARE_FLOATS:
                return {}, f"onnxruntime takes numpy arrays, which cannot be {_type_name(tensor)} as its input {name}"
            feeds[name] = array_of(tensor)
        return feeds, ""

    def _run_reference(self) -> None:
        """Run the model in PyTorch for the first file; the others are compared with the same results."""
        if self._reference is None:
            self._reference, self._reference_problem = self._results(self._example)

    def _results(self, inputs: ModelInputs, seed: int | None = None) -> tuple[tuple[Result, ...] | None, str]:
        """The results of PyTorch, or why it does not run; with a seed, from another random state."""
        try:
            args, kwargs = copied_inputs(inputs.args, inputs.kwargs)
            with reference_run(self._model, training=self._training):
                if seed is not None:
                    torch.manual_seed(seed)
                return results_of(self._model(*args, **kwargs)), ""
        except Exception as error:  # noqa: BLE001  a model may raise anything
            return None, with_class(error)[:_LONGEST_REASON]

    def accepts(self, check: FileCheck) -> bool:
        """Whether no other way to export the model needs to be tried."""
        if check.outcome is CheckOutcome.NO_KERNEL:
            tensors = (*self._model.parameters(), *self._model.buffers())
            # The file of another exporter would have the same types.
            return any(_type_name(tensor) in RARE_FLOATS for tensor in tensors)
        return not check.is_wrong

    def with_origin(self, check: FileCheck, inputs: ModelInputs, path: Path, document: HierarchyDocument) -> FileCheck:
        """The check of a file with different results, with the first call that introduces an error, or why none is.

        Args:
            check: The check.
            inputs: The inputs on which the results differ.
            path: The file.
            document: Its document.
        """
        # Imported here: a right file needs neither this nor the parts of `analysis` that it imports.
        from modelexport.verification.module_verification import verify_modules

        end = time.perf_counter() + _ORIGIN_SECONDS

        def stop(done: int, total: int, call: str) -> None:
            if time.perf_counter() > end:
                raise TimeoutError(f"{done} of {total} calls compared in {_ORIGIN_SECONDS:g} s")

        unknown = "no call alone differs from PyTorch"
        try:
            report = verify_modules(
                path, self._model, inputs.args, kwargs=inputs.kwargs, hierarchy=document, progress=stop
            )
        except Exception as error:  # noqa: BLE001  the file is known to be wrong; this only says where
            unknown = with_class(error)[:_LONGEST_REASON]
        else:
            introducing = {record.call for record in report.calls if record.verdict is Verdict.INTRODUCED}
            for call in document.calls:
                if call.id in introducing:
                    return msgspec.structs.replace(check, call=call.id)
        return msgspec.structs.replace(check, reason=f"{check.reason}; where it begins is not known ({unknown})")

    def _is_right_unoptimized(self, file: CheckedFile, inputs: ModelInputs, results: tuple[Result, ...] | None) -> bool:
        results = results or self._reference
        feeds, obstacle = self._feeds(file, inputs)
        if obstacle or results is None:
            return False
        try:
            run, found = self._runner.run_file(file.path, feeds, file.outputs, optimized=False)
        except OnnxRunError:
            return False
        compared = list(compare_outputs(file.outputs, found, results, _TOLERANCE, file.types))
        return not run.problem and all(
            output.difference is not None and not output.difference.is_out for output in compared
        )


def _is_installed() -> bool:
    return importlib.util.find_spec("onnxruntime") is not None


def _failure(run: FileRun, graph: ir.Graph, document: HierarchyDocument) -> FileCheck:
    """The check of a file that onnxruntime cannot load or run, with the call of the node that its message names."""
    if run.no_kernel:
        outcome = CheckOutcome.NO_KERNEL
    else:
        outcome = CheckOutcome.RUN_FAILED if run.loaded else CheckOutcome.LOAD_FAILED
    named = set(_IN_QUOTES.findall(run.problem))
    nodes = (
        node for node in graph if not named.isdisjoint([node.name, *(v.name for v in node.inputs if v is not None)])
    )
    outputs = (value.name for node in nodes for value in node.outputs)
    owners = {node.id: node.module for node in document.nodes}
    return FileCheck(outcome, run.problem, call=next((owners[name] for name in outputs if name in owners), None))


def _custom_domains(model: ir.Model) -> list[str]:
    """The domains of operators that are neither onnxruntime's nor functions of the model."""
    own = {identifier[0] for identifier in model.functions}
    found = {node.domain for node in model.graph.all_nodes()} - own
    return sorted(domain for domain in found if not _KNOWN_DOMAINS.fullmatch(domain))


def _known(output: ComparedOutput) -> Difference:
    assert output.difference is not None
    return output.difference


def _worst(outputs: Sequence[ComparedOutput], positions: Iterable[int]) -> ComparedOutput:
    """Of the outputs at these positions, the one with the largest error relative to its tolerance."""
    return max((outputs[i] for i in positions), key=lambda output: (_known(output).excess, _known(output).absolute))


def _of_outputs(
    outcome: CheckOutcome,
    reason: str,
    outputs: Sequence[ComparedOutput],
    positions: Iterable[int],
    file: CheckedFile,
) -> FileCheck:
    """A check that is about the outputs at these positions."""
    worst = _worst(outputs, positions)
    rtol, atol = _TOLERANCE.limits(*([worst.result.dtype] if worst.result is not None else []), *file.types)
    largest = _known(worst).absolute
    return FileCheck(outcome, reason, worst.name, largest if math.isfinite(largest) else None, rtol, atol)


def _reason(output: ComparedOutput) -> str:
    difference = _known(output)
    if difference.problem:
        return f"{output.name}: {difference.problem}"
    return f"{difference.outside:,} of {difference.elements:,} elements of {output.name} are out of tolerance"


def _type_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
