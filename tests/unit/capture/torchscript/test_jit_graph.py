"""The TorchScript graph is read whole, however it is nested."""

from __future__ import annotations

import io
import threading
from typing import Any

import pytest
import torch

from modelexport.capture.torchscript.jit_graph import blocks_of, inputs_of, outputs_of, watch_graph

pytestmark = pytest.mark.sanity


def _nested(x: torch.Tensor, n: int) -> torch.Tensor:
    text = "two lines\n block0():\n"
    for i in range(n):
        if i > 2:
            x = x + len(text)
        else:
            for _ in range(i):
                x = x * 2
    return x


def _flat(x: torch.Tensor, n: int) -> torch.Tensor:
    return torch.split(x, n)[0] + 1


def _blocks_asked_for(graph: Any) -> list[Any]:
    found = [graph]
    for block in found:
        found.extend(inner for node in block.nodes() for inner in node.blocks())
    return found


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
@pytest.mark.parametrize(("function", "count"), [(_nested, 5), (_flat, 1)])
def test_blocks_and_values_equal_those_of_each_node(function: Any, count: int) -> None:
    graph = torch.jit.script(function).graph
    found, expected = list(blocks_of(graph)), _blocks_asked_for(graph)
    assert len(found) == len(expected) == count

    def numbers(blocks: list[Any]) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
        return {
            (tuple(v.unique() for v in inputs_of(node)), tuple(v.unique() for v in outputs_of(node)))
            for block in blocks
            for node in block.nodes()
        }

    asked = {
        (tuple(v.unique() for v in node.inputs()), tuple(v.unique() for v in node.outputs()))
        for block in expected
        for node in block.nodes()
    }
    assert numbers(found) == asked


@pytest.mark.filterwarnings("ignore")
def test_export_of_another_thread_is_not_recorded() -> None:
    def export() -> None:
        torch.onnx.export(torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),), io.BytesIO(), dynamo=False)

    with watch_graph(None) as watch:
        thread = threading.Thread(target=export)
        thread.start()
        thread.join()
        assert (watch.original, watch.nodes, watch.graph) == (None, [], None)
        export()
    assert [len(nodes) for nodes in (watch.original_nodes, watch.nodes)] == [1, 1]
