"""Every attribution of a file judged by tensor values: who computed in eager PyTorch what a node computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from modelexport.analysis.call_index import ROOT, CallIndex, Side
from modelexport.analysis.contamination import Claims, Contradiction, FlowJudge
from modelexport.analysis.contamination_cases import RULE, Evidence, contamination_findings
from modelexport.analysis.dataflow import FlowGraph
from modelexport.analysis.findings import RuleReport, ValidationReport
from modelexport.analysis.subject import Subject
from modelexport.errors import FileFormatError, InputError
from modelexport.hierarchy import TensorInfo
from modelexport.inputs import normalize_inputs
from modelexport.verification.eager_run import EagerCall, EagerRun, as_array, run_eagerly
from modelexport.verification.fingerprint import Array, Fingerprint, FingerprintIndex, take_fingerprint
from modelexport.verification.onnx_run import run_onnx


def judge_attributions(
    path: str | Path, model: torch.nn.Module, example_inputs: object, report: ValidationReport | None = None
) -> ValidationReport:
    """Judge the owner of every node by what it computes.

    The model runs once in eager PyTorch and the file once in onnxruntime. A tensor whose values only some calls
    computed, or passed on, belongs to one of them; and what enters and leaves each call is seen, so that tensors
    which eager PyTorch never computes as such are judged by where they come from and where they go.

    Args:
        path: A file with its sidecar.
        model: The model it was exported from, with the same weights.
        example_inputs: A tensor, a tuple or list of positional arguments, or a dict of keyword arguments.
        report: What was found before; the findings come behind those.

    Raises:
        InputError: The model does not run on these inputs, or does not compute what the file computes.
        FileFormatError: The file or its sidecar cannot be read.
    """
    subject = Subject(path)
    if subject.document is None:
        why = subject.unreadable or f"there is no sidecar {subject.sidecar.name}"
        raise FileFormatError(f"the owners of {subject.path} cannot be judged: {why}")
    evidence = gather_evidence(subject, model, example_inputs)
    found = tuple(contamination_findings(evidence, evidence.suspicions()))
    rule = RuleReport(RULE, "no node is owned by a call that did not run it, judged by values", len(found))
    if report is None:
        return ValidationReport(str(subject.path), len(subject.nodes), (rule,), found)
    return ValidationReport(report.file, report.nodes, (*report.rules, rule), (*report.findings, *found))


def gather_evidence(subject: Subject, model: torch.nn.Module, example_inputs: object) -> Evidence:
    """What file, document and a run of each say about the owners of nodes."""
    from_file = subject.evidence
    args, kwargs = normalize_inputs(example_inputs, None)
    made: list[tuple[Fingerprint, str]] = []

    def witness(tensor: torch.Tensor, call: str) -> None:
        found = _fingerprint(tensor)
        if found is not None:
            made.append((found, call))

    run = run_eagerly(model, args, kwargs, witness=witness)
    feeds = _feeds(subject, run, (args, kwargs))
    tensors: dict[int, Fingerprint] = {}

    def receive(name: str, value: Array) -> None:
        found = take_fingerprint(value)
        if found is not None:
            tensors[from_file.flow.numbers[name]] = found

    for name, value in feeds.items():
        receive(name, value)
    run_onnx(subject.path, feeds, receive)
    values = ValueWitness(from_file.flow, from_file.calls, made, run, tensors)
    _check_same_model(subject, model, values)
    calls = from_file.calls.with_boundaries(values.inputs, values.outputs)
    judge = FlowJudge(from_file.flow, calls, from_file.document.modules, values)
    return Evidence(from_file.document, from_file.flow, calls, judge)


class ValueWitness:
    """Who computed what: the graph's tensors by the calls of an eager run that computed or handled their values.

    Attributes:
        inputs: What entered each call, in tensors of the graph.
        outputs: What left each call.
        known: The tensors whose values some call computed.
        telling: The tensors whose values say something.
    """

    def __init__(
        self,
        flow: FlowGraph,
        calls: CallIndex,
        made: Iterable[tuple[Fingerprint, str]],
        run: EagerRun,
        tensors: Mapping[int, Fingerprint],
    ) -> None:
        self.flow = flow
        self._calls = calls
        self._tensors = tensors
        numbers = calls.numbers
        index = FingerprintIndex((found, numbers[call]) for found, call in made if call in numbers and found.telling)
        self.telling = {tensor for tensor, found in tensors.items() if found.telling}
        self._computed = {tensor: frozenset(n for _, n in index.find(tensors[tensor])) for tensor in self.telling}
        self.known = {tensor for tensor, by in self._computed.items() if by}
        by_value = FingerprintIndex((tensors[tensor], tensor) for tensor in self.telling)
        self._handled: dict[int, set[int]] = {}
        self.inputs: dict[int, Side] = {}
        self.outputs: dict[int, Side] = {}
        for call in run.calls.values():
            number = numbers.get(call.id)
            if number is not None and number != ROOT:
                self.inputs[number] = self._side(number, call.arguments, calls.inputs[number], by_value)
                self.outputs[number] = self._side(number, call.results, calls.outputs[number], by_value)

    def _side(self, call: int, seen: Mapping[str, torch.Tensor], recorded: Side, by_value: FingerprintIndex) -> Side:
        """One side of a boundary: what was recorded, and the tensors that hold what was seen there."""
        found = set(recorded.tensors)
        unnamed: list[TensorInfo | None] = []
        for tensor in seen.values():
            fingerprint = _fingerprint(tensor)
            if fingerprint is None:
                continue
            same = by_value.find(fingerprint) if fingerprint.telling else []
            for _, number in same:
                self._handled.setdefault(number, set()).add(call)
            exact = [number for other, number in same if other.same(fingerprint)]
            found.update(exact)
            if not exact:
                # Its values say nothing, or the graph does not have it: any tensor that looks like it may be it.
                unnamed.append(TensorInfo(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")))
        # What was recorded and not seen in this run (a mask that masks nothing) may still be there.
        missing = max(len(recorded.tensors) + len(recorded.unnamed) - len(seen), 0)
        return Side(frozenset(found), (*unnamed, *recorded.unnamed[:missing]))

    def contradictions(self, node: int, claims: Claims) -> Iterator[Contradiction]:
        """A result that only other calls computed."""
        for tensor in self.flow.makes[node]:
            computed = self._computed.get(tensor)
            if not computed or self._is_among(node, computed, claims):
                continue
            if self._passes_on(node, tensor) and self._is_among(node, self._handled.get(tensor, ()), claims):
                # It only lays out anew what was there before: eager PyTorch need not have run an operator for it.
                continue
            names = ", ".join(sorted(self._calls.ids[call] or "(root)" for call in computed))
            yield Contradiction((node,), f"the values of {self.flow.names[tensor]!r} were computed by {names}")

    def _is_among(self, node: int, calls: Iterable[int], claims: Claims) -> bool:
        if claims.common[node]:
            return not set(claims.of(node)).isdisjoint(calls)
        return claims.owners[node] in calls

    def _passes_on(self, node: int, tensor: int) -> bool:
        """Whether something that the node reads, near or far, has the same values."""
        wanted = self._tensors[tensor]
        waiting, seen = list(self.flow.reads[node]), set()
        while waiting:
            source = waiting.pop()
            if source in seen:
                continue
            seen.add(source)
            found = self._tensors.get(source)
            if found is not None and found.same_values(wanted):
                return True
            maker = self.flow.makers[source]
            if maker >= 0 and len(seen) < _FAR and (found is None or found.size >= wanted.size):
                waiting.extend(self.flow.reads[maker])
        return False

    def candidates(self, node: int) -> Iterable[int]:
        """The calls that computed what the node makes."""
        return [call for tensor in self.flow.makes[node] for call in sorted(self._computed.get(tensor, ()))]


# So many tensors are looked through for one that a node only passes on.
_FAR = 32


def _fingerprint(tensor: torch.Tensor) -> Fingerprint | None:
    try:
        return take_fingerprint(as_array(tensor), tensor.element_size())
    except (RuntimeError, TypeError, NotImplementedError):
        # A tensor without content (a functional or fake one), or of a kind that numpy has not.
        return None


def _feeds(subject: Subject, run: EagerRun, arguments: Any) -> dict[str, Array]:
    """The graph's inputs: by the names that the document gives them, else in the order of the tensors."""
    graph = subject.model.graph
    weights = {weight.name for weight in graph.initializer}
    wanted = [value.name for value in graph.input if value.name not in weights]
    root: EagerCall = next(iter(run.calls.values()))
    assert subject.document is not None, "checked before"
    record = next((call for call in subject.document.calls if call.parent is None), None)
    names = {b.tensor: b.name for b in record.inputs if b.tensor is not None} if record is not None else {}
    if all(names.get(name) in root.arguments for name in wanted):
        return {name: as_array(root.arguments[names[name]]) for name in wanted}
    leaves = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    if len(leaves) != len(wanted):
        raise InputError(
            f"{subject.path.name} has {len(wanted)} inputs ({', '.join(wanted)}), and {len(leaves)} tensors were "
            "given: give the inputs that it was exported with"
        )
    return {name: as_array(leaf) for name, leaf in zip(wanted, leaves, strict=True)}


def _check_same_model(subject: Subject, model: torch.nn.Module, values: ValueWitness) -> None:
    """A result of the model is among what it computed, or half of all tensors are: exporters rewrite much, not most."""
    made = {t for t in values.telling if values.flow.makers[t] >= 0}
    known = made & values.known
    if len(known) * 2 < len(made) and not known & values.flow.results:
        raise InputError(
            f"{subject.path} does not compute what {type(model).__name__} computes on these inputs: {len(known)} of "
            f"its {len(made)} tensors have values that the model made. Give the model that the file was exported from, "
            "with the same weights and in the same mode"
        )
