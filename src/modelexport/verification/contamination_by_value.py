"""Check a file against PyTorch: its outputs, and the owner of every node by the calls that computed its values."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx
import torch

from modelexport.analysis import Finding, RuleReport, Severity, ValidationReport
from modelexport.analysis.contamination import RULE, FlowRules, NodeOwners, OwnerCheck, modules_by_weight
from modelexport.analysis.validation import ValidatedFile
from modelexport.display import counted
from modelexport.errors import FileFormatError, InputError, OnnxRunError
from modelexport.graph import NO_NODE, FlowGraph
from modelexport.hierarchy import CHECK_LEVELS, ROOT_CALL, CheckOutcome, HierarchyDocument
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits
from modelexport.ort import Runner, prepared, require_onnxruntime, run_subgraphs
from modelexport.storage import build_ir
from modelexport.torch_support import copied_inputs, normalize_inputs
from modelexport.torch_support.private import tensors_among
from modelexport.verification.file_check import FileChecker
from modelexport.verification.forward_recording import record_forward
from modelexport.verification.onnx_run import GraphInputs
from modelexport.verification.order_statistics import Array, OrderStatistics, order_statistics_of
from modelexport.verification.other_weights import refuse_other_weights
from modelexport.verification.pytorch_run import array_of
from modelexport.verification.value_evidence import OperatorOutputs, ValueEvidence

_OUTPUTS = "outputs"


def validate_owners_by_value(
    source: str | Path | ValidatedFile,
    model: torch.nn.Module,
    example_inputs: object,
    report: ValidationReport | None = None,
    *,
    limits: RunLimits = DEFAULT_RUN_LIMITS,
) -> ValidationReport:
    """Check that the outputs are PyTorch's, and the owner of every node by the values that it computes.

    The model runs once in eager PyTorch and the file once in onnxruntime. A tensor whose values only some calls
    computed, or returned unchanged, belongs to one of them. The values also show the inputs and outputs of each call;
    tensors that eager PyTorch does not compute are checked by the data flow between these.

    Args:
        source: A file with its sidecar.
        model: The model it was exported from, with the same weights.
        example_inputs: A tensor, a tuple or list of positional arguments, or a dict of keyword arguments.
        report: An earlier report on the file, to which the findings are added.
        limits: The limits of one run of the file.
    """
    subject = source if isinstance(source, ValidatedFile) else ValidatedFile(source, weights=True)
    document = _document(subject)
    args, kwargs = normalize_inputs(example_inputs, None, model)
    file = build_ir(subject.path, subject.model_with_weights)
    with FileChecker(model, args, kwargs, level=CHECK_LEVELS[0], most_bytes=sys.maxsize, limits=limits) as checker:
        check, _ = checker.check(subject.path, file, document)
    outputs, owners, skipped = [], list[Finding](), ""
    if check.outcome is not CheckOutcome.EQUAL:
        severity = Severity.ERROR if check.is_wrong else Severity.NOTE
        outputs = [Finding(_OUTPUTS, severity, str(check), "modelexport verify compares every module")]
    if check.is_wrong or check.outcome is CheckOutcome.NONDETERMINISTIC:
        refuse_other_weights(file.graph, document, model)
        skipped = "the outputs are not PyTorch's, so values do not tell what each call computed"
    else:
        owners = check_owners_by_value(subject, model, example_inputs, limits).findings()
    title = "no node is owned by a call that did not run it, checked by values"
    rules = (
        RuleReport(_OUTPUTS, "the outputs are what PyTorch's model returns", len(outputs)),
        RuleReport(RULE, title, len(owners), skipped),
    )
    if report is None:
        return ValidationReport(str(subject.path), len(subject.nodes), rules, (*outputs, *owners))
    return ValidationReport(report.file, report.nodes, (*report.rules, *rules), (*report.findings, *outputs, *owners))


def check_owners_by_value(
    subject: ValidatedFile, model: torch.nn.Module, example_inputs: object, limits: RunLimits = DEFAULT_RUN_LIMITS
) -> OwnerCheck:
    """The check of owners by a right file, its document and a run of each."""
    document = _document(subject)
    require_onnxruntime()
    check = subject.owner_check
    args, kwargs = normalize_inputs(example_inputs, None, model)
    # The model may change its inputs in place.
    copies = copied_inputs(args, kwargs)
    outputs = OperatorOutputs()
    run = record_forward(model, args, kwargs, on_output=outputs)
    _check_modules_ran(document, model, run)
    feeds = _feeds(subject, document, model, *copies)
    tensors = _run_values(subject, check.flow, feeds, limits)
    constants = _constant_values(subject, document, check.flow)
    owners = NodeOwners(document, check.flow, check.calls)
    values = ValueEvidence(check.flow, check.calls, outputs, run, tensors, owners, constants)
    calls = check.calls.with_boundaries(values.inputs, values.outputs)
    return OwnerCheck(document, check.flow, calls, FlowRules(check.flow, calls, document.modules, values))


def _document(subject: ValidatedFile) -> HierarchyDocument:
    if subject.document is None:
        reason = subject.sidecar_problem or f"there is no sidecar {subject.sidecar.name}"
        raise FileFormatError(f"the owners of {subject.path} cannot be checked: {reason}")
    return subject.document


def _check_modules_ran(document: HierarchyDocument, model: torch.nn.Module, run: Iterable[str]) -> None:
    """Refuse a model that calls no module, so that the run shows nothing about modules."""
    root = {str(ROOT_CALL)}
    if {call.id for call in document.calls} - root and not set(run) - root:
        raise InputError(
            f"{type(model).__name__} calls none of its modules, as exported programs and compiled models do, so the "
            "run does not show what each module computes: give the Python model it was created from"
        )


def _feeds(
    subject: ValidatedFile,
    document: HierarchyDocument,
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> dict[str, Array]:
    """The graph's inputs: by their names in the document, else in the order of the tensors."""
    graph = subject.model.graph
    weights = {weight.name for weight in graph.initializer}
    names = [value.name for value in graph.input if value.name not in weights]
    found = GraphInputs(document, model, args, kwargs, names)
    if not found.missing:
        return {name: array_of(tensor) for name, tensor in found.tensors.items()}
    leaves = tensors_among((args, kwargs))
    if len(leaves) != len(names):
        raise InputError(
            f"{subject.path.name} has {counted(len(names), 'input')} ({', '.join(names)}), and the call has "
            f"{counted(len(leaves), 'tensor')}; {found.explain()}"
        )
    return {name: array_of(leaf) for name, leaf in zip(names, leaves, strict=True)}


def _run_values(
    subject: ValidatedFile, flow: FlowGraph, feeds: Mapping[str, Array], limits: RunLimits
) -> dict[int, OrderStatistics]:
    """The values of the file's tensors in onnxruntime, subgraphs included."""
    found: dict[tuple[str, str], OrderStatistics] = {}

    def receive(path: str, name: str, value: Array) -> None:
        statistics = order_statistics_of(value)
        if statistics is not None:
            found[path, name] = statistics

    for name, value in feeds.items():
        receive("", name, value)
    try:
        model = build_ir(subject.path, subject.model_with_weights)
        with Runner(limits, threads=torch.get_num_threads()) as runner, prepared(model) as ready:
            # One at a time, so that not all are in memory.
            for name, value in ready.tensors(runner, feeds, ready.produced):
                receive("", name, value)
            run_subgraphs(runner, ready, feeds, receive)
    except (FileFormatError, OnnxRunError) as error:
        raise InputError(f"onnxruntime cannot run {subject.path} on these inputs: {error}") from error
    main = {flow.tensor_numbers[name]: statistics for (path, name), statistics in found.items() if not path}
    return {**main, **_subgraph_values(flow, found)}


def _subgraph_values(flow: FlowGraph, found: Mapping[tuple[str, str], OrderStatistics]) -> dict[int, OrderStatistics]:
    """The values of tensors in subgraphs, by tensor number instead of the path of the subgraph and the name."""
    paths: dict[int, str] = {}
    tensors: dict[int, OrderStatistics] = {}
    for node, owning_node in enumerate(flow.owning_nodes):
        if owning_node == NO_NODE:
            continue
        outputs = flow.node_outputs[node]
        paths[node] = flow.node_ids[node].removesuffix(flow.tensor_names[outputs[0]] if outputs else "")
        for tensor in outputs:
            statistics = found.get((paths[node], flow.tensor_names[tensor]))
            if statistics is not None:
                tensors[tensor] = statistics
        for tensor in flow.subgraph_inputs.intersection(flow.node_inputs[node]).difference(tensors):
            # An input of a subgraph may be consumed in a subgraph inside it.
            inner = node
            while inner in paths and (paths[inner], flow.tensor_names[tensor]) not in found:
                inner = flow.owning_nodes[inner]
            if inner in paths:
                tensors[tensor] = found[paths[inner], flow.tensor_names[tensor]]
    return tensors


def _constant_values(
    subject: ValidatedFile, document: HierarchyDocument, flow: FlowGraph
) -> dict[int, OrderStatistics]:
    """The values of initializers that belong to no module: the exporter computed them."""
    known = modules_by_weight(flow, document.modules)
    names = {flow.tensor_names[tensor] for tensor in flow.initializers if tensor not in known}
    found: dict[int, OrderStatistics] = {}
    for tensor in subject.model_with_weights.graph.initializer:
        if tensor.name in names and tensor.data_type != onnx.TensorProto.STRING:
            value = onnx.numpy_helper.to_array(tensor, base_dir=str(subject.path.parent))
            statistics = order_statistics_of(value)
            if statistics is not None:
                found[flow.tensor_numbers[tensor.name]] = statistics
    return found
