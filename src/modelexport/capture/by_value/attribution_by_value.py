"""Who owns the nodes of any ONNX graph of a model: one eager pass, one run of the graph, matched by value."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from modelexport.capture.by_value.eager_graph import EagerGraph, EagerRun, SeenTensor
from modelexport.capture.by_value.eager_recording import run_eagerly
from modelexport.capture.by_value.operator_matching import Correspondence
from modelexport.capture.by_value.subgraph_matching import attribute_bodies
from modelexport.errors import InputError, ModelExportError, StrategyIncompatibleError
from modelexport.graph import Array, Fingerprint, ValueIndex, nodes_with_ids, subgraphs_of, take_fingerprint
from modelexport.hierarchy import (
    ROOT_CALL,
    ROOT_PATH,
    Attribution,
    BoundaryTensor,
    CallId,
    CallTree,
    ModuleCall,
    ModuleTree,
)
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits
from modelexport.ort import Runner, numpy_type, prepared, require_onnxruntime, run_subgraphs
from modelexport.ownership import infer_missing
from modelexport.torch_support import named_arguments

STRATEGY = "usage_based"

_LONGEST_REASON = 300
# The part of a graph's tensors that must be known by value before the rest is reasoned from them.
_FEWEST_MATCHED = 0.1


@dataclasses.dataclass(frozen=True)
class Usage:
    """The owners of a graph's nodes, and what they rest on.

    Attributes:
        known: The attributions that values tell.
        attributions: The attribution of every node, bodies and functions included.
        calls: The module calls with their boundaries, in tensors of the graph.
        telling: How many nodes of the main graph make a tensor that can be told from others by its values.
        matched: For how many of those eager PyTorch made the same.
        agrees: Whether the graph computes what the model computes: its results, or at least some of the way to them.
        run: What eager PyTorch did.
    """

    known: Mapping[ir.Node, Attribution]
    attributions: Mapping[ir.Node, Attribution]
    calls: CallTree
    telling: int
    matched: int
    agrees: bool
    run: EagerRun

    def describe(self) -> str:
        """The eager run as text: each operator behind the call that ran it, with the values it read and made."""
        lines = [
            f"[{str(operation.call) or '(root)'}] {list(operation.inputs)} -> {list(operation.outputs)}"
            for operation in self.run.operations
        ]
        return "\n".join(lines) + "\n"


def check_onnxruntime() -> None:
    """Refuse to start without the runtime that this evidence needs.

    Raises:
        StrategyIncompatibleError: It is not installed.
    """
    try:
        require_onnxruntime()
    except InputError as error:
        raise StrategyIncompatibleError(
            STRATEGY, "it runs the ONNX graph, and onnxruntime is not installed.", "pip install 'modelexport[runtime]'"
        ) from error


def attribute_by_usage(
    graph: ir.Model,
    model: torch.nn.Module,
    tree: ModuleTree,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    limits: RunLimits = DEFAULT_RUN_LIMITS,
) -> Usage:
    """Find the owners of a graph's nodes by what they compute.

    Args:
        graph: An ONNX graph of the model, from whatever exporter.
        model: The model, in the mode it was exported in.
        tree: Its modules.
        args: Positional inputs.
        kwargs: Inputs by keyword.
        limits: What one run of the graph may take.

    Raises:
        StrategyIncompatibleError: onnxruntime is missing, or cannot run the graph.
        InputError: The inputs do not fit the graph or the model.
    """
    require_onnxruntime()
    given = list(named_arguments(tree[ROOT_PATH].forward_arguments, args, kwargs))
    places = match_inputs(graph.graph, given)
    feeds = {
        value.name: _as_fed(given[places[value.name]][1], value) for value in graph.graph.inputs if value.name in places
    }
    try:
        run = run_eagerly(model, tree, args, kwargs)
    except Exception as error:
        reason = f"{type(error).__name__}: {_in_one_line(error)}"
        raise InputError(f"{type(model).__name__}.forward fails on the example inputs: {reason}") from error
    tensors, inner = run_onnx(graph, feeds, run.mean_bytes, limits)
    tensors.update({name: known for name, fed in feeds.items() if (known := take_fingerprint(fed)) is not None})
    eager = EagerGraph(run)
    anchors = _weights(graph.graph, tensors, eager)
    anchors.update({name: {run.calls[ROOT_CALL].inputs[place].value} for name, place in places.items()})
    calls = CallTree({call.id: ModuleCall(call.id.path, call.id.index, call.parent) for call in run.calls.values()})
    returned = [tensor.value for tensor in run.calls[ROOT_CALL].outputs]
    matching = Correspondence(graph.graph, tensors, anchors, eager, calls, returned)
    matched_owners = matching.attributions()
    identities = {node: identity for identity, node in nodes_with_ids(graph)}
    matched_owners.update(attribute_bodies(matching, inner, identities, calls))
    owners = infer_missing(graph, matched_owners, calls)
    telling = [
        node
        for node in graph.graph
        if any((known := tensors.get(value.name or "")) is not None and known.is_distinctive for value in node.outputs)
    ]
    matched = sum(bool(matching.counterparts(node)) for node in telling)
    last = [maker for output in graph.graph.outputs if (maker := output.producer()) is not None]
    return Usage(
        known=matched_owners,
        attributions=owners,
        calls=_with_boundaries(run, calls, matching, tensors, owners),
        telling=len(telling),
        matched=matched,
        agrees=matched >= len(telling) * _FEWEST_MATCHED or any(matching.counterparts(node) for node in last),
        run=run,
    )


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:_LONGEST_REASON]


# --- the ONNX run ----------------------------------------------------------------------------------------------


def match_inputs(graph: ir.Graph, given: Sequence[tuple[str, torch.Tensor]]) -> dict[str, int]:
    """For each input of the graph the place of the tensor to feed: by name, what is left by order.

    Raises:
        InputError: There is no tensor for an input.
    """
    wanted = [value.name for value in graph.inputs if value.name and value.name not in graph.initializers]
    by_name = {_plain(name): place for place, (name, _) in reversed(list(enumerate(given)))}
    places = {name: by_name[_plain(name)] for name in wanted if _plain(name) in by_name}
    left = [place for place in range(len(given)) if place not in places.values()]
    missing = [name for name in wanted if name not in places]
    if len(missing) > len(left):
        names = ", ".join(name for name, _ in given) or "none"
        raise InputError(
            f"the graph reads {', '.join(wanted)}, and the example inputs hold {len(given)} tensors ({names}): "
            f"nothing is left for {missing[len(left)]!r}; give the inputs that the file was exported with"
        )
    places.update(zip(missing, left, strict=False))
    return places


def _plain(name: str) -> str:
    # Exporters write the way to a nested tensor with underscores.
    return name.replace(".", "_")


def _as_fed(tensor: torch.Tensor, value: ir.Value) -> Array:
    given = tensor.detach().cpu()
    array: Array = (given.float() if given.dtype is torch.bfloat16 else given).numpy()
    dtype = None if value.dtype is None else numpy_type(value.dtype)
    return array if dtype is None else array.astype(dtype, copy=False)


def run_onnx(
    model: ir.Model, feeds: Mapping[str, Array], unknown_bytes: int, limits: RunLimits = DEFAULT_RUN_LIMITS
) -> tuple[dict[str, Fingerprint], dict[str, dict[str, Fingerprint]]]:
    """Run the graph and take the fingerprint of every tensor that a node produces.

    Args:
        model: The model.
        feeds: Its inputs.
        unknown_bytes: What a tensor of unknown size counts for.
        limits: What one run of the graph may take.

    Returns:
        The fingerprints by name, those of the main graph; and those of each subgraph, by its path.

    Raises:
        StrategyIncompatibleError: onnxruntime cannot run it.
    """
    found: dict[str, Fingerprint] = {}
    inner: dict[str, dict[str, Fingerprint]] = {}

    def receive(path: str, name: str, value: Array) -> None:
        known = take_fingerprint(value)
        if known is not None:
            inner.setdefault(path, {})[name] = known

    try:
        # As many threads as torch may use: whoever limits one means both.
        with Runner(limits, threads=torch.get_num_threads()) as runner, prepared(model) as ready:
            for name, value in ready.tensors(runner, feeds, ready.produced, unknown_bytes):
                known = take_fingerprint(value)
                if known is not None:
                    found[name] = known
            if any(True for node in model.graph for _ in subgraphs_of(node)):
                run_subgraphs(runner, ready, feeds, receive)
    except ModelExportError as error:
        raise StrategyIncompatibleError(
            STRATEGY,
            f"onnxruntime cannot run the graph: {_in_one_line(error)}.",
            "Check that the inputs fit the file, or choose a strategy that does not run it",
        ) from error
    return found, inner


def _weights(graph: ir.Graph, tensors: dict[str, Fingerprint], eager: EagerGraph) -> dict[str, set[int]]:
    """The values that the initializers hold: those that need no input of the model, by content or by name."""
    run = eager.run
    index = ValueIndex([known if n in eager.constant else None for n, known in enumerate(run.fingerprints)])
    found: dict[str, set[int]] = {}
    for name, value in graph.initializers.items():
        tensor = value.const_value
        known = take_fingerprint(tensor.numpy()) if tensor is not None else None
        if known is None:
            continue
        tensors[name] = known
        # By content first: optimizers keep one of several equal weights, under a name that is then wrong for most.
        found[name] = set(index.find(known))
        named = run.weights.get(name)
        own = run.fingerprints[named] if named is not None else None
        if not found[name] and named is not None and own is not None and own.group[:2] == known.group[:2]:
            found[name] = {named}
    return found


# --- boundaries ------------------------------------------------------------------------------------------------


def _with_boundaries(
    run: EagerRun,
    calls: CallTree,
    matching: Correspondence,
    tensors: Mapping[str, Fingerprint],
    owners: Mapping[ir.Node, Attribution],
) -> CallTree:
    """The calls with the tensors that entered and left them, where the graph has them in the same layout."""
    holders: dict[int, list[ir.Value]] = {}
    for value, numbers in matching.found.items():
        for number in numbers:
            holders.setdefault(number, []).append(value)

    def inside(value: ir.Value, call: CallId) -> bool:
        producer = value.producer()
        return producer is not None and calls.encloses(call, owners[producer].owner)

    def crosses(value: ir.Value, call: CallId, *, leaving: bool) -> bool:
        """Whether the tensor is read on the other side of the call's boundary than the one it was made on."""
        sides = [calls.encloses(call, owners[use.node].owner) for use in value.uses()]
        return (leaving and value.is_graph_output()) or any(side is not leaving for side in sides)

    def place(seen: SeenTensor, call: CallId, *, leaving: bool) -> BoundaryTensor:
        known = run.fingerprints[seen.value]
        alike = [
            value
            for value in holders.get(seen.value, ())
            if known is not None and (own := tensors.get(value.name or "")) is not None and own.same_layout(known)
        ]
        # Of tensors that hold the same: what leaves a call was made inside of it and is read outside, what enters it
        # the other way round.
        alike.sort(
            key=lambda value: (
                not matching.has_made(value, seen.value),
                inside(value, call) != leaving,
                not crosses(value, call, leaving=leaving),
                len(matching.found[value]),
            )
        )
        return BoundaryTensor(seen.name, alike[0].name if alike else None, seen.info)

    def bounded(seen: Iterable[SeenTensor], call: CallId, *, leaving: bool) -> tuple[BoundaryTensor, ...]:
        return tuple(place(tensor, call, leaving=leaving) for tensor in seen)

    return CallTree(
        {
            call.id: ModuleCall(
                call.id.path,
                call.id.index,
                call.parent,
                bounded(call.inputs, call.id, leaving=False),
                bounded(call.outputs, call.id, leaving=True),
            )
            for call in run.calls.values()
        }
    )
