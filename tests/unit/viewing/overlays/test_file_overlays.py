"""Overlays of a file itself: kinds, confidence, precision by types, FLOPs."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto, helper
from tests.conftest import Exporter
from tests.support.scoped_models import layer, saved, scoped, stack

import modelexport
from modelexport.viewing.page_data import KINDS, Overlay, PageData


def overlay(data: PageData, name: str) -> Overlay:
    return next(each for each in data.overlays if each.id == name)


def shown(data: PageData, name: str) -> dict[str, tuple[str | None, str | None]]:
    """The category of each call, and that of what is inside of it."""
    found = overlay(data, name)

    def text(value: float | None) -> str | None:
        return None if value is None else found.categories[int(value)]

    ids = [data.strings[position] for position in data.calls.id]
    rows = zip(ids, found.calls, found.totals or found.calls, strict=True)
    return {call: (text(own), text(total)) for call, own, total in rows}


@pytest.mark.xdist_group("cnn")
def test_kind_and_confidence_of_a_call_are_the_worst_of_its_nodes(exported: Exporter) -> None:
    ours = exported("cnn")
    data = modelexport.view(ours.path).data
    ids = [data.strings[position] for position in data.calls.id]
    kinds, confidence = shown(data, "kind"), overlay(data, "confidence")
    for number, call in enumerate(ids):
        own = [node for node in ours.document.nodes if node.module == call]
        assert kinds[call][0] == (max((node.kind for node in own), key=KINDS.index) if own else None)
        assert confidence.calls[number] == min((node.confidence for node in own), default=None)
    assert kinds[""][1] == max((node.kind for node in ours.document.nodes), key=KINDS.index) != "exact"
    assert (confidence.totals or [])[0] == min(node.confidence for node in ours.document.nodes)


@pytest.mark.xdist_group("bert")
def test_flops_are_those_of_the_static_profile(exported: Exporter) -> None:
    path = exported("bert").path
    data, report = modelexport.view(path).data, modelexport.profile_statically(path)
    found = overlay(data, "flops")
    by_call = {call.id: call for call in report.calls}
    ids = [data.strings[position] for position in data.calls.id]
    assert found.calls == [by_call[call].own.flops for call in ids]
    assert found.totals == [by_call[call].total.flops for call in ids]
    assert sum(value or 0 for value in found.nodes or []) == report.total.flops > 0


def test_flops_of_dynamic_axes_need_their_sizes(tmp_path: Path) -> None:
    path = saved(stack([layer(0)], shape=("batch", 4)), tmp_path / "m.onnx")
    data = modelexport.view(path).data
    assert "flops" not in [each.id for each in data.overlays]
    assert any("FLOPs are left out" in note and "--axis batch=1" in note for note in data.notes)
    known = modelexport.view(path, axes={"batch": 3}).data
    # 2 for each of 4 products of 3 x 4 elements; Relu has none.
    assert (overlay(known, "flops").totals or [])[0] == 2 * 4 * 12
    with pytest.raises(modelexport.InputError, match="no dynamic axis 'other'"):
        modelexport.view(path, axes={"other": 3})


def test_precision_is_by_types_and_not_by_operators(tmp_path: Path) -> None:
    nodes = [
        scoped(helper.make_node("Custom", ["x"], ["half"], domain="any"), "a", "models.A"),
        scoped(helper.make_node("Custom", ["half"], ["eight"], domain="any"), "b", "models.B"),
        scoped(helper.make_node("Shape", ["eight"], ["size"]), "c", "models.C"),
        scoped(helper.make_node("Identity", ["size"], ["y"]), "d", "models.D"),
    ]
    types = {"half": TensorProto.FLOAT16, "eight": TensorProto.INT8, "size": TensorProto.INT64}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [2])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [1])],
        value_info=[helper.make_tensor_value_info(name, kind, [2]) for name, kind in types.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("any", 1)]
    path = saved(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "m.onnx")
    found = shown(modelexport.view(path).data, "precision")
    assert found["a"] == ("float16", "float16")
    assert found["b"] == ("float16 and int8", "float16 and int8")
    assert found["c"] == ("int8", "int8")
    assert found["d"] == ("integers and booleans", "integers and booleans")
    assert found[""] == (None, "float16 and int8")
