"""Check an exported file: onnxruntime loads it, runs it on the example inputs, and gives PyTorch's results."""

from __future__ import annotations

import copy
import importlib.util
import math
import re
import time
from collections.abc import Collection, Mapping, Sequence
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
from modelexport.hierarchy import CHECK_LEVELS, ROOT_CALL, CheckOutcome, FileCheck, HierarchyDocument
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits
from modelexport.ort import FileRun, Runner
from modelexport.torch_support import copied_inputs, named_results
from modelexport.verification.difference import RARE_FLOATS, Tolerance, compare, precisions_of
from modelexport.verification.onnx_run import GraphInputs
from modelexport.verification.pytorch_run import array_of, reference_run, rounded_differently

_RUN, _LOAD, _OFF = CHECK_LEVELS
# Outputs of a full model add up the rounding errors of all modules.
_TOLERANCE = Tolerance(least_atol=1e-4)
_OTHER_SEED = 1
_ROUNDING_SEEDS = (0, 1, 2)
# An error is not counted as the file's if other rounding changes PyTorch's own results by at least half as much.
_UNSTABLE_RATIO = 2
_LONGEST_REASON = 200
# The domains of onnxruntime's own operators.
_KNOWN_DOMAINS = re.compile(r"(ai\.onnx(\..*)?|com\.microsoft(\..*)?|com\.ms\..*)?")
# The names of nodes and tensors in onnxruntime's messages.
_IN_QUOTES = re.compile(r"['(]([^'()]+)[')]")


class _Result(NamedTuple):
    """A result of PyTorch: its content, and its type there."""

    content: np.ndarray
    dtype: str


class FileChecker:
    """Checks the files of one export, all against the same results of PyTorch.

    A context manager: it ends the process of onnxruntime.

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
        self._model, self._args, self._kwargs, self._training = model, args, kwargs, training
        self._level, self._most_bytes = level, most_bytes
        self._runner = Runner(limits, threads=torch.get_num_threads())
        self._reference: dict[str, _Result] | None = None
        self._reference_problem = ""

    @property
    def is_off(self) -> bool:
        """Whether nothing is checked."""
        return self._level == _OFF

    def __enter__(self) -> FileChecker:
        return self

    def __exit__(self, *raised: object) -> None:
        self._runner.__exit__(*raised)

    def with_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FileChecker:
        """Return a checker for other example inputs, with the same process of onnxruntime."""
        other = copy.copy(self)
        other._args, other._kwargs, other._reference = args, kwargs, None
        return other

    def start(self) -> None:
        """Start the process of onnxruntime, which loads while the model is exported."""
        if not self.is_off and _is_installed():
            self._runner.start()

    def check(self, path: Path, model: ir.Model, document: HierarchyDocument) -> FileCheck:
        """Check a file.

        Args:
            path: The file.
            model: The model in it.
            document: Its document.
        """
        if self.is_off:
            return FileCheck(CheckOutcome.UNCHECKED, "the check is off")
        if not _is_installed():
            return FileCheck(
                CheckOutcome.UNCHECKED, "onnxruntime is not installed (pip install 'modelexport[runtime]')"
            )
        if self._most_bytes is None:
            return FileCheck(CheckOutcome.UNCHECKED, "its weights are not in the file (export_params)")
        unknown = _custom_domains(model)
        if unknown:
            return FileCheck(CheckOutcome.UNCHECKED, f"onnxruntime has no operators of {', '.join(unknown)}")
        try:
            found = self._check(path, model, document)
            if found.is_wrong and self._is_right_unoptimized(path, model, document):
                return msgspec.structs.replace(found, outcome=CheckOutcome.EQUAL_UNOPTIMIZED)
            return found
        except (InputError, RunLimitError) as error:
            return FileCheck(CheckOutcome.UNCHECKED, str(error))
        except OnnxRunError as error:
            # Its process ended: whether it was loaded is not known.
            return FileCheck(CheckOutcome.RUN_FAILED, str(error))

    def _check(self, path: Path, model: ir.Model, document: HierarchyDocument) -> FileCheck:
        types = precisions_of(model.graph)
        feeds, obstacle = self._feeds(model, document)
        if obstacle:
            run, found = self._runner.run_file(path, None, _outputs(model))
        else:
            run, found = self._runner.run_file(path, feeds, _outputs(model), meanwhile=self._run_reference)
        if run.problem:
            return _failure(run, model.graph, document)
        if obstacle:
            return FileCheck(CheckOutcome.LOADED, obstacle)
        if self._reference is None:
            return FileCheck(CheckOutcome.LOADED, f"PyTorch cannot run the model here ({self._reference_problem})")
        reference = self._reference
        differences = _differences(found, _outputs(model), document, reference, types)
        if not differences:
            return FileCheck(CheckOutcome.LOADED, "none of its outputs could be matched with a result of PyTorch")
        name, difference = _worst(differences)
        if difference.is_out and self._is_random(name, types):
            return FileCheck(CheckOutcome.NONDETERMINISTIC, f"{name} changes with the random state in PyTorch")
        outcome, reason = CheckOutcome.EQUAL, ""
        if difference.is_out:
            changes = self._changes_by_rounding(types)
            wrong = {
                name: difference
                for name, difference in differences.items()
                if difference.is_out
                and (difference.problem or not difference.absolute <= _UNSTABLE_RATIO * changes.get(name, -1.0))
            }
            if wrong:
                name, difference = _worst(wrong)
                outcome, reason = CheckOutcome.DIFFERENT, _reason(name, difference)
            else:
                outcome = CheckOutcome.UNSTABLE
                reason = f"{name} changes by {changes[name]:.2g} if the results of modules are rounded differently"
        rtol, atol = _TOLERANCE.limits(reference[name].dtype, *types)
        largest = difference.absolute if math.isfinite(difference.absolute) else None
        return FileCheck(outcome, reason, name, largest, rtol, atol)

    def _is_random(self, name: str, types: Collection[str]) -> bool:
        """Whether a result of PyTorch changes with the random state."""
        assert self._reference is not None
        again = self._results(_OTHER_SEED).get(name)
        expected = self._reference[name].content
        return again is None or compare(again.content, expected, _TOLERANCE, again.dtype, *types).is_out

    def _changes_by_rounding(self, types: Collection[str]) -> dict[str, float]:
        """How much the results of PyTorch change if the results of modules are rounded differently.

        A result that stays within tolerance is left out.
        """
        assert self._reference is not None
        changes: dict[str, float] = {}
        for seed in _ROUNDING_SEEDS:
            try:
                with rounded_differently(self._model, seed):
                    results = self._results()
            except Exception:  # noqa: BLE001  a model may check its values; the file then counts as different
                continue
            for name in self._reference.keys() & results.keys():
                content, dtype = results[name]
                difference = compare(content, self._reference[name].content, _TOLERANCE, dtype, *types)
                if difference.is_out and math.isfinite(difference.absolute):
                    changes[name] = max(changes.get(name, 0.0), difference.absolute)
        return changes

    def _feeds(self, model: ir.Model, document: HierarchyDocument) -> tuple[dict[str, np.ndarray], str]:
        """The inputs of the graph, or why they are unknown."""
        if self._level == _LOAD:
            return {}, "check is 'load'"
        if self._most_bytes is not None and (size := weight_bytes(model)) > self._most_bytes:
            return {}, f"its weights have {size:,} bytes, and check_bytes is {self._most_bytes:,}"
        names = [value.name or "" for value in model.graph.inputs if not value.is_initializer()]
        inputs = GraphInputs(document, self._model, self._args, self._kwargs, names)
        if inputs.missing:
            return {}, inputs.explain()
        feeds: dict[str, np.ndarray] = {}
        for name, tensor in inputs.tensors.items():
            if _type_name(tensor) in RARE_FLOATS:
                return {}, f"onnxruntime takes numpy arrays, which cannot be {_type_name(tensor)} as its input {name}"
            feeds[name] = array_of(tensor)
        return feeds, ""

    def _run_reference(self) -> None:
        """Run the model in PyTorch for the first file; the others are compared with the same results."""
        if self._reference is None:
            try:
                self._reference = self._results()
            except Exception as error:  # noqa: BLE001  a model may raise anything
                self._reference_problem = with_class(error)[:_LONGEST_REASON]

    def _results(self, seed: int | None = None) -> dict[str, _Result]:
        """The results of PyTorch by name; with a seed, from another random state."""
        args, kwargs = copied_inputs(self._args, self._kwargs)
        with reference_run(self._model, training=self._training):
            if seed is not None:
                torch.manual_seed(seed)
            found = dict(named_results(self._model(*args, **kwargs)))
            # Results may share memory with buffers, which are restored.
            return {name: _Result(array_of(tensor).copy(), _type_name(tensor)) for name, tensor in found.items()}

    def accepts(self, check: FileCheck) -> bool:
        """Whether no other way to export the model needs to be tried."""
        if check.outcome is CheckOutcome.NO_KERNEL:
            tensors = (*self._model.parameters(), *self._model.buffers())
            # The file of another exporter would have the same types.
            return any(_type_name(tensor) in RARE_FLOATS for tensor in tensors)
        return not check.is_wrong

    def with_origin(self, check: FileCheck, path: Path, document: HierarchyDocument, seconds: float) -> FileCheck:
        """The check of a file with different results, with the first call that introduces an error, or why none is.

        Args:
            check: The check.
            path: The file.
            document: Its document.
            seconds: The time for the search.
        """
        # Imported here: a right file needs neither this nor the parts of `analysis` that it imports.
        from modelexport.verification.module_verification import verify_modules

        end = time.perf_counter() + seconds

        def stop(done: int, total: int, call: str) -> None:
            if time.perf_counter() > end:
                raise TimeoutError(f"{done} of {total} calls compared in {seconds:g} s")

        unknown = "no call alone differs from PyTorch"
        try:
            report = verify_modules(
                path, self._model, self._args, kwargs=self._kwargs, hierarchy=document, progress=stop
            )
        except Exception as error:  # noqa: BLE001  the file is known to be wrong; this only says where
            unknown = with_class(error)[:_LONGEST_REASON]
        else:
            introducing = {record.call for record in report.calls if record.verdict is Verdict.INTRODUCED}
            for call in document.calls:
                if call.id in introducing:
                    return msgspec.structs.replace(check, call=call.id)
        return msgspec.structs.replace(check, reason=f"{check.reason}; where it begins is not known ({unknown})")

    def _is_right_unoptimized(self, path: Path, model: ir.Model, document: HierarchyDocument) -> bool:
        feeds, obstacle = self._feeds(model, document)
        if obstacle or self._reference is None:
            return False
        try:
            run, found = self._runner.run_file(path, feeds, _outputs(model), optimized=False)
        except OnnxRunError:
            return False
        differences = _differences(found, _outputs(model), document, self._reference, precisions_of(model.graph))
        return not run.problem and bool(differences) and not _worst(differences)[1].is_out


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


def _pairs(
    outputs: Sequence[str], document: HierarchyDocument, reference: Mapping[str, _Result]
) -> list[tuple[str, str]]:
    """The results of PyTorch with their tensors in the graph: by the root's boundary, else by their order."""
    root = next((call for call in document.calls if call.id == str(ROOT_CALL)), None)
    known = [(port.name, port.tensor) for port in root.outputs if port.name in reference] if root is not None else []
    pairs = [(name, tensor) for name, tensor in known if tensor is not None and tensor in outputs]
    if not pairs and len(outputs) == len(reference):
        pairs = list(zip(reference, outputs, strict=True))
    return pairs


def _custom_domains(model: ir.Model) -> list[str]:
    """The domains of operators that are neither onnxruntime's nor functions of the model."""
    own = {identifier[0] for identifier in model.functions}
    found = {node.domain for node in model.graph.all_nodes()} - own
    return sorted(domain for domain in found if not _KNOWN_DOMAINS.fullmatch(domain))


def _outputs(model: ir.Model) -> list[str]:
    return [value.name or "" for value in model.graph.outputs]


def _differences(
    found: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    document: HierarchyDocument,
    reference: Mapping[str, _Result],
    types: Collection[str],
) -> dict[str, Difference]:
    """The differences of the outputs that can be compared, by the names of PyTorch's results."""
    return {
        name: compare(found[tensor], reference[name].content, _TOLERANCE, reference[name].dtype, *types)
        for name, tensor in _pairs(outputs, document, reference)
        if tensor in found
    }


def _worst(differences: Mapping[str, Difference]) -> tuple[str, Difference]:
    """The output with the largest error relative to its tolerance."""
    return max(differences.items(), key=lambda pair: (pair[1].excess, pair[1].absolute))


def _reason(name: str, difference: Difference) -> str:
    if difference.problem:
        return f"{name}: {difference.problem}"
    return f"{difference.outside:,} of {difference.elements:,} elements of {name} are out of tolerance"


def _type_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
