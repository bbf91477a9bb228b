"""Every attribution of a file judged by tensor values: who computed in eager PyTorch what a node computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils.weak import WeakIdKeyDictionary

from modelexport.analysis import RuleReport, ValidationReport
from modelexport.analysis.contamination import (
    ROOT,
    RULE,
    CallIndex,
    Claims,
    Contradiction,
    Evidence,
    FlowJudge,
    Side,
    contamination_findings,
    weight_holders,
)
from modelexport.analysis.validation import ValidatedFile
from modelexport.errors import FileFormatError, InputError
from modelexport.graph import FlowGraph
from modelexport.hierarchy import ROOT_CALL, TensorInfo
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits
from modelexport.ort import require_onnxruntime
from modelexport.torch_support import copied_inputs, normalize_inputs
from modelexport.torch_support.private import tensors_among, version_of
from modelexport.verification.difference import Tolerance, compare
from modelexport.verification.eager_run import EagerRun, as_array, run_eagerly
from modelexport.verification.file_run import read_initializers, run_file
from modelexport.verification.fingerprint import Array, Fingerprint, FingerprintIndex, take_fingerprint
from modelexport.verification.graph_inputs import GraphInputs


def judge_attributions(
    path: str | Path,
    model: torch.nn.Module,
    example_inputs: object,
    report: ValidationReport | None = None,
    *,
    limits: RunLimits = DEFAULT_RUN_LIMITS,
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
        limits: What one run of the file may take.

    Raises:
        InputError: The model or the file does not run on these inputs, or they do not compute the same.
        FileFormatError: The file or its sidecar cannot be read.
    """
    subject = ValidatedFile(path)
    if subject.document is None:
        why = subject.sidecar_problem or f"there is no sidecar {subject.sidecar.name}"
        raise FileFormatError(f"the owners of {subject.path} cannot be judged: {why}")
    evidence = gather_evidence(subject, model, example_inputs, limits)
    found = tuple(contamination_findings(evidence, evidence.suspicions()))
    rule = RuleReport(RULE, "no node is owned by a call that did not run it, judged by values", len(found))
    if report is None:
        return ValidationReport(str(subject.path), len(subject.nodes), (rule,), found)
    return ValidationReport(report.file, report.nodes, (*report.rules, rule), (*report.findings, *found))


def gather_evidence(
    subject: ValidatedFile, model: torch.nn.Module, example_inputs: object, limits: RunLimits = DEFAULT_RUN_LIMITS
) -> Evidence:
    """What file, document and a run of each say about the owners of nodes."""
    require_onnxruntime()
    from_file = subject.evidence
    args, kwargs = normalize_inputs(example_inputs, None)
    # The model may work on its inputs in place.
    given = copied_inputs(args, kwargs)
    results = _Results()
    run = run_eagerly(model, args, kwargs, witness=results)
    _check_modules_ran(subject, model, run)
    feeds = _feeds(subject, model, *given)
    tensors: dict[int, Fingerprint] = {}

    def receive(name: str, value: Array) -> None:
        found = take_fingerprint(value)
        if found is not None:
            tensors[from_file.flow.numbers[name]] = found

    inner: dict[tuple[str, str], Fingerprint] = {}

    def receive_inner(path: str, name: str, value: Array) -> None:
        found = take_fingerprint(value)
        if found is not None:
            inner[path, name] = found

    for name, value in feeds.items():
        receive(name, value)
    constants: dict[int, Fingerprint] = {}
    run_file(subject.path, feeds, receive, receive_inner, limits)
    for name, value in read_initializers(subject.path, _unheld(subject, from_file.flow)):
        found = take_fingerprint(value)
        if found is not None:
            constants[from_file.flow.numbers[name]] = found
    tensors.update(_in_bodies(from_file.flow, inner))
    claims = Claims(from_file.document, from_file.flow, from_file.calls)
    values = ValueWitness(from_file.flow, from_file.calls, results, run, tensors, claims, constants)
    if not _is_same_model(values):
        raise InputError(_another_model(subject, model, values, run, given))
    calls = from_file.calls.with_boundaries(values.inputs, values.outputs)
    judge = FlowJudge(from_file.flow, calls, from_file.document.modules, values)
    return Evidence(from_file.document, from_file.flow, calls, judge)


def _check_modules_ran(subject: ValidatedFile, model: torch.nn.Module, run: EagerRun) -> None:
    """A model that runs as one piece says of no module what it computed."""
    claimed = {call.id for call in subject.document.calls} if subject.document is not None else set()
    root = {str(ROOT_CALL)}
    if claimed - root and not set(run.calls) - root:
        raise InputError(
            f"{type(model).__name__} runs none of its modules one by one, as exported programs and compiled models do, "
            "so that nothing tells what each of them computes: give the Python model it was made of"
        )


class _Results:
    """What operators made, as fingerprints: by those that computed new values, and by those that passed some on."""

    def __init__(self) -> None:
        self.computed: list[tuple[Fingerprint, str]] = []
        self.passed: list[tuple[Fingerprint, str]] = []
        # The fingerprints of tensors that are still there, each with the version of the tensor that it was taken of.
        self._taken: Any = WeakIdKeyDictionary()

    def __call__(self, tensor: torch.Tensor, call: str, read: list[torch.Tensor]) -> None:
        found = self._of(tensor)
        if found is None or not found.telling:
            return
        sources = (self._of(other) for other in read if other.numel() == found.size)
        moved = any(source is not None and source.is_moved(found) for source in sources)
        (self.passed if moved else self.computed).append((found, call))

    def _of(self, tensor: torch.Tensor) -> Fingerprint | None:
        version, found = self._taken.get(tensor, (None, None))
        now = version_of(tensor)
        if version != now:
            found = _fingerprint(tensor)
            self._taken[tensor] = (now, found)
        return cast("Fingerprint | None", found)


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
        results: _Results,
        run: EagerRun,
        tensors: Mapping[int, Fingerprint],
        claims: Claims,
        constants: Mapping[int, Fingerprint],
    ) -> None:
        self.flow = flow
        self._constants = constants
        self._calls = calls
        self._tensors = tensors
        self.telling = {tensor for tensor, found in tensors.items() if found.telling}
        self._numbers = _numbers(run, calls, self._work(results, claims))
        self._computed = self._by_call(results.computed)
        self._passed = self._by_call(results.passed)
        self.known = {tensor for tensor, by in self._computed.items() if by}
        by_value = FingerprintIndex((tensors[tensor], tensor) for tensor in self.telling)
        self._handled: dict[int, frozenset[int]] = {}
        self._copies: dict[int, bool] = {}
        self.inputs: dict[int, Side] = {}
        self.outputs: dict[int, Side] = {}
        for call in run.calls.values():
            # Where it may be one of several, this boundary may be another one's.
            number = self._numbers[call.id][0] if len(self._numbers.get(call.id, ())) == 1 else _UNKNOWN
            if number not in (_UNKNOWN, ROOT):
                self.inputs[number] = self._side(number, call.arguments, calls.inputs[number], by_value)
                self.outputs[number] = self._side(number, call.results, calls.outputs[number], by_value)

    def _work(self, results: _Results, claims: Claims) -> Callable[[str, int], int]:
        """How many nodes that a call is said to own have results of that call of the run."""
        by_call: dict[str, list[tuple[Fingerprint, int]]] = {}
        for found, call in results.computed:
            by_call.setdefault(call, []).append((found, 0))

        def count(call: str, number: int) -> int:
            index = FingerprintIndex(by_call.get(call, []))
            made = (tensor for node in claims.owned(number) for tensor in self.flow.makes[node])
            return sum(bool(index.find(self._tensors[tensor])) for tensor in made if tensor in self.telling)

        return count

    def _by_call(self, made: list[tuple[Fingerprint, str]]) -> dict[int, frozenset[int]]:
        """For each tensor that says something the calls with results of the same values."""
        index = FingerprintIndex((found, n) for found, call in made for n in self._numbers.get(call, (_UNKNOWN,)))
        found = {tensor: frozenset(n for _, n in index.find(self._tensors[tensor])) for tensor in self.telling}
        return {tensor: frozenset() if _UNKNOWN in by else by for tensor, by in found.items()}

    def _side(self, call: int, seen: Mapping[str, torch.Tensor], recorded: Side, by_value: FingerprintIndex) -> Side:
        """One side of a boundary: what was recorded, and the tensors that hold what was seen there."""
        complete = bool(recorded.tensors) and not recorded.unnamed
        found = set(recorded.tensors)
        unnamed: list[TensorInfo | None] = []
        for tensor in seen.values():
            fingerprint = _fingerprint(tensor)
            if fingerprint is None:
                continue
            same = by_value.find(fingerprint) if fingerprint.telling else []
            for _, number in same:
                # The call that made this one had it in its hands, too.
                self._handled[number] = self._handled.get(number, frozenset()) | {call, self._calls.parents[call]}
            if complete:
                continue
            exact = [number for other, number in same if other.same(fingerprint)]
            found.update(exact)
            if not exact:
                # The graph may have it with its axes in another order, where they change and change back outside.
                found.update(number for _, number in same)
                # Its values say nothing, or the graph does not have it: any tensor that looks like it may be it.
                unnamed.append(TensorInfo(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")))
        if complete:
            # Equal values elsewhere in the graph say nothing against a tensor that was recorded by its name.
            return recorded
        # What was recorded and not seen in this run (a mask that masks nothing) may still be there.
        missing = max(len(recorded.tensors) + len(recorded.unnamed) - len(seen), 0)
        return Side(frozenset(found), (*unnamed, *recorded.unnamed[:missing]))

    def contradictions(self, node: int, claims: Claims) -> Iterator[Contradiction]:
        """A result that only other calls computed."""
        for tensor in self.flow.makes[node]:
            allowed = self._makers(node, tensor)
            if allowed and not self._is_among(node, allowed, claims):
                names = ", ".join(sorted(self._calls.ids[call] or "(root)" for call in self._computed[tensor]))
                yield Contradiction((node,), f"the values of {self.flow.names[tensor]!r} were computed by {names}")

    def _makers(self, node: int, tensor: int) -> frozenset[int]:
        """The calls that may own the node by what it makes; none where its values say nothing."""
        computed = self._computed.get(tensor, frozenset())
        if not computed or not self._passes_on(node, tensor):
            return computed
        # It only lays out anew what was there before: eager PyTorch need not have run an operator for it.
        return computed | self._passed[tensor] | self._handled.get(tensor, frozenset())

    def _is_among(self, node: int, calls: Iterable[int], claims: Claims) -> bool:
        if claims.common[node]:
            return not set(claims.of(node)).isdisjoint(calls)
        return claims.owners[node] in calls

    def _passes_on(self, node: int, tensor: int) -> bool:
        """Whether something that the node reads, near or far, has the same values."""
        if tensor not in self._copies:
            self._copies[tensor] = self._has_same_source(node, tensor)
        return self._copies[tensor]

    def _has_same_source(self, node: int, tensor: int) -> bool:
        wanted = self._tensors[tensor]
        waiting, seen = self._pieces(node), set()
        while waiting:
            source, together = waiting.pop()
            if source in seen:
                continue
            seen.add(source)
            found = self._tensors.get(source) or self._constants.get(source)
            if found is not None and found.is_moved(wanted):
                return True
            maker = self.flow.makers[source]
            if maker >= 0 and len(seen) < _FAR and (found is None or max(found.size, together) >= wanted.size):
                waiting.extend(self._pieces(maker))
        return False

    def _pieces(self, node: int) -> list[tuple[int, int]]:
        """What a node reads, with the size of all of it: values may come in pieces that it puts together."""
        found = (self._tensors.get(source) for source in self.flow.reads[node])
        together = sum(piece.size for piece in found if piece is not None)
        return [(source, together) for source in self.flow.reads[node]]

    def computed_by(self, node: int) -> Sequence[int]:
        """The calls that computed the values which the node makes."""
        return [call for tensor in self.flow.makes[node] for call in sorted(self._computed.get(tensor, ()))]

    def candidates(self, node: int) -> Iterable[int]:
        """The calls that computed what the node makes, or passed it on where it does no more."""
        return [call for tensor in self.flow.makes[node] for call in sorted(self._makers(node, tensor))]


def _numbers(run: EagerRun, calls: CallIndex, work: Callable[[str, int], int]) -> dict[str, tuple[int, ...]]:
    """For each call of the run those of the document that it may be.

    Exporters count calls in bodies apart from the others, each in its own way: there the module is certain, and of its
    calls the one that most of the work is put down to.
    """
    by_path: dict[str, list[int]] = {}
    for number, record in enumerate(calls.records):
        by_path.setdefault(record.path, []).append(number)
    found: dict[str, tuple[int, ...]] = {}
    for path in {call.path for call in run.calls.values() if call.in_body}:
        seen, numbers = [call.id for call in run.calls.values() if call.path == path], by_path.get(path, [])
        found.update(dict.fromkeys(seen, tuple(numbers)))
        if len(seen) == len(numbers) > 1:
            scores = {(s, n): work(seen[s], numbers[n]) for s in range(len(seen)) for n in range(len(seen))}
            left = sorted((pair for pair in scores if scores[pair]), key=lambda p: (-scores[p], abs(p[0] - p[1]), p))
            while left:
                one, other = left[0]
                found[seen[one]] = (numbers[other],)
                left = [pair for pair in left if pair[0] != one and pair[1] != other]
    for call in run.calls.values():
        if call.id not in found:
            found[call.id] = (calls.numbers[call.id],) if call.id in calls.numbers else ()
    return {call: numbers or (_UNKNOWN,) for call, numbers in found.items()}


def _in_bodies(flow: FlowGraph, found: Mapping[tuple[str, str], Fingerprint]) -> dict[int, Fingerprint]:
    """What was found of tensors in bodies, by the way to the body and the tensor's name, for the tensors' numbers."""
    ways: dict[int, str] = {}
    tensors: dict[int, Fingerprint] = {}
    for node, holder in enumerate(flow.holders):
        if holder < 0:
            continue
        first = flow.names[flow.makes[node][0]] if flow.makes[node] else ""
        ways[node] = flow.ids[node].removesuffix(first)
        made = {tensor: found.get((ways[node], flow.names[tensor])) for tensor in flow.makes[node]}
        tensors.update({tensor: known for tensor, known in made.items() if known is not None})
        for tensor in flow.formal.intersection(flow.reads[node]).difference(tensors):
            # What a body is handed may be read in a body further in.
            inner = node
            while inner in ways and (ways[inner], flow.names[tensor]) not in found:
                inner = flow.holders[inner]
            if inner in ways:
                tensors[tensor] = found[ways[inner], flow.names[tensor]]
    return tensors


# So many tensors are looked through for one that a node only passes on.
_FAR = 32
_UNKNOWN = -1
_OTHER_SEED = 0x5EED


def _fingerprint(tensor: torch.Tensor) -> Fingerprint | None:
    try:
        return take_fingerprint(as_array(tensor), tensor.element_size())
    except (RuntimeError, TypeError, NotImplementedError):
        # A tensor without content (a functional or fake one), or of a kind that numpy has not.
        return None


def _feeds(
    subject: ValidatedFile, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Array]:
    """The graph's inputs: by the names that the document gives them, else in the order of the tensors."""
    graph = subject.model.graph
    weights = {weight.name for weight in graph.initializer}
    wanted = [value.name for value in graph.input if value.name not in weights]
    assert subject.document is not None, "checked before"
    found = GraphInputs(subject.document, model, args, kwargs, wanted)
    if not found.missing:
        return {name: as_array(tensor) for name, tensor in found.tensors.items()}
    leaves = tensors_among((args, kwargs))
    if len(leaves) != len(wanted):
        raise InputError(
            f"{subject.path.name} has {len(wanted)} inputs ({', '.join(wanted)}), and {len(leaves)} tensors were "
            f"given; {found.explain()}"
        )
    return {name: as_array(leaf) for name, leaf in zip(wanted, leaves, strict=True)}


def _unheld(subject: ValidatedFile, flow: FlowGraph) -> set[str]:
    """The weights of no module: what the exporter computed while it wrote the file."""
    assert subject.document is not None, "checked before"
    held = weight_holders(flow, subject.document.modules)
    return {flow.names[tensor] for tensor in flow.weights if tensor not in held}


def _is_same_model(values: ValueWitness) -> bool:
    """A result of the model is among what it computed, or half of all tensors are: exporters rewrite much, not most."""
    made = _made(values)
    known = made & values.known
    return len(known) * 2 >= len(made) or bool(known & values.flow.results)


def _made(values: ValueWitness) -> set[int]:
    return {tensor for tensor in values.telling if values.flow.makers[tensor] >= 0}


def _another_model(
    subject: ValidatedFile,
    model: torch.nn.Module,
    values: ValueWitness,
    run: EagerRun,
    given: tuple[tuple[Any, ...], dict[str, Any]],
) -> str:
    """Why the file does not compute what the model does."""
    made = _made(values)
    said = (
        f"{subject.path} does not compute what {type(model).__name__} computes on these inputs: "
        f"{len(made & values.known)} of its {len(made)} tensors have values that the model made."
    )
    root, again = (next(iter(r.calls.values())).results for r in (run, run_eagerly(model, *given, seed=_OTHER_SEED)))
    if any(name in again and not _same(tensor, again[name]) for name, tensor in root.items()):
        return f"{said} The model's own results are others from one random state to the next: values cannot tell here"
    return f"{said} Give the model that the file was exported from, with the same weights and in the same mode"


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return not compare(as_array(one), as_array(other), Tolerance()).is_out
