"""How the cost of the projection grows with the graph: from 1,000 to 200,000 nodes.

The graphs consist of layers as exporters write them: weights, repeated constants, a mask computed in each layer,
residual additions, and Identity nodes. They are rewritten as optimizers do: equal nodes are merged, Identity nodes
removed, neighbours fused into one node, and some nodes replaced by new ones with new names. Run with ``make
projection-benchmark``, or ``python -m benchmarks.projection_growth --write docs/measurements/projection.md``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import onnx_ir as ir
from benchmarks.pages import replace_part, table
from onnx_ir.passes.common import CommonSubexpressionEliminationPass, IdentityEliminationPass

from modelexport.hierarchy.attribution import Attribution
from modelexport.hierarchy.calls import ROOT_CALL, CallId, CallTree, ModuleCall
from modelexport.hierarchy.confidence import recorded_by_exporter
from modelexport.ownership import project

SIZES = (1_000, 5_000, 20_000, 50_000, 100_000, 200_000)
ROUNDS = 3
# Growth beyond linear shows as a rising cost per node.
GROWTH_LIMIT = 2.0


class Layers:
    """A graph of layers, and the owner of each node."""

    def __init__(self, nodes: int) -> None:
        self.owners: dict[ir.Node, Attribution] = {}
        self._nodes: list[ir.Node] = []
        self._initializers: list[ir.Value] = []
        self.calls: dict[CallId, ModuleCall] = {}
        hidden, mask = _value("hidden"), _value("mask")
        state, layer = hidden, 0
        while len(self._nodes) < nodes:
            state = self._layer(layer, state, mask)
            layer += 1
        graph = ir.Graph([hidden, mask], [state], nodes=self._nodes, initializers=self._initializers, name="layers")
        graph.opset_imports[""] = 20
        self.model = ir.Model(graph, ir_version=10)

    def _layer(self, number: int, state: ir.Value, mask: ir.Value) -> ir.Value:
        layer = self._call(f"layer.{number}", ROOT_CALL)
        first, norm, second = (self._call(f"layer.{number}.{name}", layer) for name in ("first", "norm", "second"))
        masked = self._node(layer, "Mul", self._node(layer, "Cast", mask), self._constant(layer, -1e4))
        x = self._node(first, "Add", self._node(first, "MatMul", state, self._weight(first)), self._weight(first))
        x = self._node(norm, "Mul", self._node(norm, "Sub", x, self._weight(norm)), self._weight(norm))
        x = self._node(layer, "Add", self._node(layer, "Identity", x), masked)
        x = self._node(second, "Add", self._node(second, "MatMul", x, self._weight(second)), self._weight(second))
        return self._node(layer, "Add", x, state)

    def _call(self, path: str, parent: CallId) -> CallId:
        call = CallId(path)
        self.calls[call] = ModuleCall(path, 0, parent)
        return call

    def _node(self, call: CallId, operation: str, *inputs: ir.Value) -> ir.Value:
        node = ir.Node("", operation, inputs, outputs=[_value(f"v{len(self._nodes)}")])
        self._nodes.append(node)
        self.owners[node] = recorded_by_exporter(call)
        return node.outputs[0]

    def _constant(self, call: CallId, number: float) -> ir.Value:
        tensor = ir.tensor(np.array([number], dtype=np.float32))
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[_value(f"v{len(self._nodes)}")])
        self._nodes.append(node)
        self.owners[node] = recorded_by_exporter(call)
        return node.outputs[0]

    def _weight(self, call: CallId) -> ir.Value:
        value = _value(f"{call.path}.weight{len(self._initializers)}")
        # Large and distinct: small equal constants would be merged.
        value.const_value = ir.tensor(np.full(300, len(self._initializers), dtype=np.float32), name=value.name)
        self._initializers.append(value)
        return value


def _value(name: str) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))


def rewrite(model: ir.Model) -> ir.Model:
    """Merge, remove, fuse and replace, as an optimizer would."""
    rewritten = model.clone()
    IdentityEliminationPass()(rewritten)
    CommonSubexpressionEliminationPass()(rewritten)
    for number, node in enumerate(list(rewritten.graph)):
        if number % 3 == 0:
            _fuse_with_producer(rewritten.graph, node)
        elif number % 17 == 0 and node.inputs and not node.outputs[0].is_graph_output():
            node.outputs[0].name = f"new{number}"
    return rewritten


def _fuse_with_producer(graph: ir.Graph, node: ir.Node) -> None:
    for value in node.inputs:
        producer = value.producer() if value is not None else None
        if producer is not None and producer.inputs and value is not None and len(list(value.uses())) == 1:
            inputs = [*producer.inputs, *(other for other in node.inputs if other is not value)]
            fused = ir.Node("", f"{producer.op_type}{node.op_type}", inputs, num_outputs=len(node.outputs))
            names = [output.name for output in node.outputs]
            ir.convenience.replace_nodes_and_values(graph, node, [node], [fused], node.outputs, fused.outputs)
            for output, name in zip(fused.outputs, names, strict=True):
                output.name = name
            graph.remove(producer, safe=True)
            return


def measure(nodes: int) -> tuple[int, int, float]:
    """The sizes of both graphs, and the median time of the projection in seconds."""
    times = []
    for _ in range(ROUNDS):
        layers = Layers(nodes)
        rewritten = rewrite(layers.model)
        before = len(layers.model.graph)
        start = time.perf_counter()
        projection = project(layers.model, layers.owners, rewritten, CallTree(layers.calls))
        times.append(time.perf_counter() - start)
        if len(projection.attributions) != len(rewritten.graph):
            sys.exit("not every node has an owner")
    return before, len(rewritten.graph), statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="the page with the table")
    options = parser.parse_args()
    rows = []
    for size in SIZES:
        before, after, seconds = measure(size)
        each = seconds / before * 1e6
        rows.append((before, after, seconds, each))
        print(f"{before:>8,} -> {after:>8,} nodes  {seconds:7.3f} s  {each:6.1f} us per node", flush=True)
    growth = rows[-1][3] / min(row[3] for row in rows)
    print(f"cost per node at the largest size: {growth:.2f} times the lowest")
    if options.write:
        head = ("original nodes", "rewritten nodes", "seconds", "microseconds per node")
        text = table(head, [(f"{b:,}", f"{a:,}", f"{s:.3f}", f"{e:.1f}") for b, a, s, e in rows])
        text += f"\n\nThe cost per node at the largest size is {growth:.2f} times the lowest."
        replace_part(options.write, "projection", text)
    sys.exit(growth > GROWTH_LIMIT)


if __name__ == "__main__":
    main()
