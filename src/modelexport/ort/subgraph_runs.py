"""Run the subgraphs of If, Loop and Scan, each as a model of its own on the tensors that it captures.

So both branches of an If run, on any inputs. A loop runs its last iteration.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from modelexport.errors import OnnxRunError
from modelexport.graph import proto_nodes_with_ids, proto_subgraphs_of
from modelexport.ort.prepared_model import Array, PreparedModel
from modelexport.ort.runner import Runner

# Called with the path of a subgraph (``If_3/then_branch/``) and the name and content of an input or produced tensor.
SubgraphReceiver = Callable[[str, str, Array], None]

# The attribute of operators whose subgraph does not return a loop condition.
_WITHOUT_CONDITION = "num_scan_inputs"
_PER_OUTPUT = ("scan_output_axes", "scan_output_directions")


def run_subgraphs(runner: Runner, model: PreparedModel, feeds: Mapping[str, Array], receive: SubgraphReceiver) -> None:
    """Run every subgraph, nested ones too, except those that cannot run alone.

    Args:
        runner: Runs them.
        model: The model; it is not changed.
        feeds: Its inputs.
        receive: Called with each input of a subgraph and each tensor that its nodes produce.
    """
    _SubgraphRuns(runner, model, receive).run(feeds)


@dataclasses.dataclass(frozen=True)
class _Scope:
    """A graph that can be run.

    Attributes:
        source: The graph in the original model.
        model: The graph as a model.
        feeds: The inputs of that model.
        known: Its tensors that its subgraphs capture.
    """

    source: onnx.GraphProto
    model: onnx.ModelProto
    feeds: Mapping[str, Array]
    known: dict[str, Array] = dataclasses.field(default_factory=dict)


class _SubgraphRuns:
    def __init__(self, runner: Runner, model: PreparedModel, receive: SubgraphReceiver) -> None:
        self._runner = runner
        self._model = model
        self._receive = receive
        # Kept alive, so that the Python objects of the nodes stay the same.
        self._nodes = proto_nodes_with_ids(model.proto)
        self._ids = {id(node): node_id for node_id, node in self._nodes}

    def run(self, feeds: Mapping[str, Array]) -> None:
        waiting = [_Scope(self._model.proto.graph, self._model.proto, feeds)]
        while waiting:
            scope = waiting.pop()
            for path, graph, passed in self._enter(scope):
                inner = _as_model(scope, graph, passed)
                if inner is None:
                    continue
                produced = [name for node in graph.node for name in node.output if name]
                try:
                    results = self._run(inner.model, inner.feeds, produced)
                except OnnxRunError:
                    # A branch that is not taken may be invalid for these inputs.
                    continue
                for name, value in (*passed.items(), *results.items()):
                    self._receive(path, name, value)
                waiting.append(inner)

    def _run(self, model: onnx.ModelProto, feeds: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        wanted = onnx.ModelProto()
        wanted.CopyFrom(model)
        return dict(PreparedModel(wanted, self._model.folder).tensors(self._runner, feeds, names))

    def _enter(self, scope: _Scope) -> Iterator[tuple[str, onnx.GraphProto, dict[str, Array]]]:
        """The subgraphs of a scope, each with its path and its inputs in the last iteration."""
        subgraphs = [graph for node in scope.source.node for _, graph in proto_subgraphs_of(node)]
        if not subgraphs:
            return
        captured = {name for graph in subgraphs for name in _captured(graph)}
        wanted = [name for node in scope.source.node for name in node.output if name in captured]
        scope.known.update(scope.feeds)
        last: dict[str, Array] = {}
        shown, names = _with_iterations_shown(scope.model)
        for model, more in ((shown, names), (scope.model, [])) if names else ((scope.model, []),):
            if not wanted and not more:
                break
            try:
                found = self._run(model, scope.feeds, [*wanted, *more])
            except OnnxRunError:
                # The second attempt runs without the inputs of iterations, and so without loops.
                continue
            scope.known.update({name: found[name] for name in wanted if name in found})
            last = {name: found[name][-1] for name in more if name in found and len(found[name])}
            break
        for position, node in enumerate(scope.source.node):
            for name, graph in proto_subgraphs_of(node):
                found_inputs = {value.name: last.get(_shown(position, value.name)) for value in graph.input}
                passed = {key: np.asarray(value) for key, value in found_inputs.items() if value is not None}
                if len(passed) == len(found_inputs):
                    yield f"{self._ids[id(node)]}/{name}/", graph, passed


def _with_iterations_shown(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """A copy of the model whose loops also return the stacked inputs of their iterations, and the names of these."""
    if not any(graph.input for node in model.graph.node for _, graph in proto_subgraphs_of(node)):
        return model, []
    shown, names = copy.deepcopy(model), list[str]()
    for position, node in enumerate(shown.graph.node):
        subgraphs = list(proto_subgraphs_of(node))
        if len(subgraphs) != 1 or not subgraphs[0][1].input:
            continue
        _, graph = subgraphs[0]
        has_condition = not any(attribute.name == _WITHOUT_CONDITION for attribute in node.attribute)
        # Trailing outputs may be omitted. They are named here, because outputs are appended.
        left_out = [""] * (len(graph.output) - has_condition - len(node.output))
        results = [name or _shown(position, f"#{n}") for n, name in enumerate((*node.output, *left_out))]
        del node.output[:]
        node.output.extend(results)
        for value in graph.input:
            name = _shown(position, value.name)
            graph.node.append(helper.make_node("Identity", [value.name], [name]))
            graph.output.append(helper.make_tensor_value_info(name, value.type.tensor_type.elem_type, None))
            node.output.append(name)
            names.append(name)
            for attribute in node.attribute:
                if attribute.name in _PER_OUTPUT:
                    attribute.ints.append(0)
    return shown, names


def _shown(position: int, name: str) -> str:
    """The name of the additional output of a loop for one input of its iterations."""
    return f"modelexport.iterations/{position}/{name}"


def _as_model(outer: _Scope, graph: onnx.GraphProto, passed: Mapping[str, Array]) -> _Scope | None:
    """A subgraph as a model: the tensors it captures are inputs, except weights; None if one is unknown."""
    weights = {weight.name: weight for weight in outer.model.graph.initializer}
    captured = _captured(graph)
    if not all(name in weights or name in outer.known for name in captured):
        return None
    feeds = {**passed, **{name: outer.known[name] for name in captured if name in outer.known}}
    model = onnx.ModelProto(ir_version=outer.model.ir_version)
    model.opset_import.extend(outer.model.opset_import)
    model.functions.extend(outer.model.functions)
    model.graph.name = graph.name or "subgraph"
    model.graph.node.extend(graph.node)
    model.graph.initializer.extend(graph.initializer)
    model.graph.initializer.extend(weights[name] for name in captured if name not in feeds)
    for name, array in feeds.items():
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        model.graph.input.append(helper.make_tensor_value_info(name, kind, array.shape))
    return _Scope(graph, model, feeds)


def _captured(graph: onnx.GraphProto) -> list[str]:
    """The names that a graph uses and does not define itself, each once."""
    bound = {value.name for value in graph.input} | {weight.name for weight in graph.initializer}
    used: dict[str, None] = {}
    for node in graph.node:
        bound.update(node.output)
        used.update(dict.fromkeys(node.input))
        for _, inner in proto_subgraphs_of(node):
            used.update(dict.fromkeys(_captured(inner)))
    used.update({value.name: None for value in graph.output})
    return [name for name in used if name and name not in bound]
