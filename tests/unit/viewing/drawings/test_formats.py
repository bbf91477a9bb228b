"""Drawings of one level: the boxes, the tensors between them, and texts that are not cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.tagged_models import write_tagged_model
from tests.conftest import Exporter

import modelexport
from modelexport.viewing.drawings.formats import as_dot, as_svg
from modelexport.viewing.drawings.level_graph import Level, read_level


def level_of(path: Path, call: str = "") -> Level:
    return read_level(modelexport.view(path).data, call)


def connections(level: Level) -> set[tuple[str, str]]:
    return {(level.boxes[edge.source].title, level.boxes[edge.target].title) for edge in level.edges}


@pytest.mark.xdist_group("bert")
def test_level_has_the_calls_inside_and_the_nodes_that_the_call_owns(exported: Exporter) -> None:
    ours = exported("bert")
    level = level_of(ours.path, "encoder.layer.1")
    assert level.title == "encoder.layer.1: BertLayer"
    assert [box.title for box in level.boxes if box.kind == "call"] == [
        "BertAttention",
        "BertIntermediate",
        "BertOutput",
    ]
    assert sum(box.kind == "node" for box in level.boxes) == sum(
        node.module == "encoder.layer.1" for node in ours.document.nodes
    )
    found = connections(level)
    assert {("BertAttention", "BertIntermediate"), ("BertIntermediate", "BertOutput")} <= found
    # The residual connection, with the name of the argument, the type and the shape.
    (residual,) = (
        edge
        for edge in level.edges
        if (level.boxes[edge.source].title, level.boxes[edge.target].title) == ("BertAttention", "BertOutput")
    )
    assert residual.lines == ("input_tensor: float32 2 x 7 x 32",)
    assert {box.title for box in level.boxes if box.kind == "input"} >= {"hidden_states"}


@pytest.mark.xdist_group("bert")
def test_inputs_and_outputs_of_the_model_are_boxes(exported: Exporter) -> None:
    level = level_of(exported("bert").path)
    assert {box.title for box in level.boxes if box.kind == "input"} == {"input_ids", "attention_mask"}
    assert {box.title for box in level.boxes if box.kind == "output"} == {"last_hidden_state", "pooler_output"}


@pytest.mark.xdist_group("cond")
def test_branches_lead_to_the_node_that_owns_them(exported: Exporter) -> None:
    found = connections(level_of(exported("cond").path))
    assert {("Mul", "If"), ("Sub", "If"), ("Branch", "Mul"), ("Branch", "Sub")} <= found


def test_layers_with_equal_structure_are_one_box(tmp_path: Path) -> None:
    level = level_of(write_tagged_model(tmp_path / "stack.onnx", 2_000))
    (box,) = (box for box in level.boxes if box.kind == "calls")
    assert box.title == "StackLayer \N{MULTIPLICATION SIGN}100"
    assert box.lines[0] == "layers.0 … layers.99"


@pytest.mark.xdist_group("bert")
@pytest.mark.parametrize("render", [as_svg, as_dot])
def test_drawing_has_every_text_in_full(exported: Exporter, render: Callable[[Level], str]) -> None:
    level = level_of(exported("bert").path, "encoder.layer.0.attention.self")
    drawing = render(level)
    for text in (line for box in level.boxes for line in (box.title, *box.lines)):
        assert text in drawing
    for text in (line for edge in level.edges for line in edge.lines):
        assert text in drawing
