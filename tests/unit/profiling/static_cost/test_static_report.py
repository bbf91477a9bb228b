"""The static cost by module call: against counts by hand, and against the counter of PyTorch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from tests.conftest import Exported, Exporter
from tests.support.hostile_graphs import function_bomb
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from modelexport.errors import FileFormatError, InputError
from modelexport.profiling.static_cost.static_report import CallCost, StaticReport, profile_statically


def by_id(report: StaticReport) -> dict[str, CallCost]:
    return {call.id: call for call in report.calls}


def counted_by_torch(model: torch.nn.Module, *args: Any, **kwargs: Any) -> int:
    # The counter has no formula for the fused attention of the CPU.
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model(*args, **kwargs)
    return int(counter.get_total_flops())


@pytest.mark.xdist_group("cnn")
def test_convolution_and_linear_equal_a_count_by_hand(exported: Exporter) -> None:
    calls = by_id(profile_statically(exported("cnn").path))
    # Two images of 16 x 16, kernels of 3 x 3 from 3 to 8 channels, a bias, a ReLU.
    outputs = 2 * 8 * 16 * 16
    block = calls["features.0"].total
    assert block.macs == outputs * 3 * 3 * 3
    assert (block.flops, block.other_operations) == (2 * outputs * 3 * 3 * 3, outputs + outputs)
    assert block.parameters == 8 * 3 * 3 * 3 + 8
    head = calls["head"].own
    assert (head.macs, head.flops, head.other_operations) == (2 * 16 * 5, 2 * 2 * 16 * 5, 2 * 5)
    assert head.parameters == 16 * 5 + 5
    assert head.activation_bytes == 2 * 5 * 4
    assert head.traffic_bytes == 4 * (2 * 16 + 16 * 5 + 5 + 2 * 5)
    assert head.operations_per_byte == (2 * 2 * 16 * 5 + 2 * 5) / head.traffic_bytes


@pytest.mark.xdist_group("lstm")
def test_lstm_equals_a_count_by_hand(exported: Exporter) -> None:
    report = profile_statically(exported("lstm").path)
    # Two bidirectional layers of 8 over 5 steps of a batch of 2: inputs of 6, then of 2 x 8.
    cells = 2 * 5 * 2 * 8
    own = by_id(report)["rnn"].own
    assert own.macs == cells * 4 * (6 + 8) + cells * 4 * (16 + 8)
    # For each cell: 4 sums of two products, 8 biases, 4 activations, 3 for the cell state, 2 for the hidden state.
    assert (own.flops, own.other_operations) == (2 * own.macs, 2 * cells * (4 + 8 + 4 + 3 + 2))
    # The initial state is an initializer too: zeros for two directions and a batch of two.
    parameters = exported("lstm").example.model.rnn.parameters()
    assert own.parameters == sum(p.numel() for p in parameters) + 2 * 2 * 8


@pytest.mark.xdist_group("bert")
def test_attention_equals_a_count_by_hand(exported: Exporter) -> None:
    call = by_id(profile_statically(exported("bert").path))["encoder.layer.0.attention.self"]
    # Batch 2, 4 heads of 8, 7 tokens: scores and weighted values; queries, keys and values of 32.
    assert call.own.macs == 2 * 4 * 7 * 7 * (8 + 8)
    assert call.total.macs == call.own.macs + 3 * 2 * 7 * 32 * 32
    assert call.total.flops == 2 * call.total.macs


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in ("bert", "vit", "resnet")])
def test_flops_equal_the_count_of_torch(exported: Exporter, name: str) -> None:
    ours: Exported = exported(name)
    report = profile_statically(ours.path)
    assert report.total.flops == counted_by_torch(ours.example.model, *ours.args, **ours.kwargs)
    assert report.uncounted == ()


@pytest.mark.xdist_group("shared_block")
def test_totals_are_the_sum_of_own_costs_and_a_shared_weight_counts_once(exported: Exporter) -> None:
    report = profile_statically(exported("shared_block").path)
    calls = by_id(report)
    for name in ("nodes", "macs", "flops", "other_operations", "activation_bytes", "traffic_bytes"):
        own = [getattr(call.own, name) for call in report.calls]
        assert sum(own) == getattr(calls[""].total, name) == getattr(report.total, name)
        for by in ("call", "module", "class", "op"):
            assert sum(getattr(row.own, name) for row in report.rows(by)) == sum(own)
    # The block runs three times, and its weights are read each time.
    blocks = [calls["blk"], calls["blk@1"], calls["blk@2"]]
    assert {block.total.macs for block in blocks} == {4 * 8 * 8}
    assert {block.total.parameters for block in blocks} == {8 * 8 + 8 + 8 + 8}
    assert calls[""].total.parameters == sum(p.numel() for p in exported("shared_block").example.model.parameters())


@pytest.mark.xdist_group("bert")
def test_dynamic_axes_are_named_when_missing_and_count_when_given(exported: Exporter) -> None:
    path = exported("bert", dynamic=True).path
    with pytest.raises(InputError, match="--axis") as caught:
        profile_statically(path)
    axes = dict.fromkeys(re.findall(r"--axis (\w+)=1", str(caught.value)), 2)
    small = profile_statically(path, axes=axes)
    assert small.axes == axes
    assert small.uncounted == ()
    larger = profile_statically(path, axes=dict.fromkeys(axes, 4))
    assert larger.total.macs > 3 * small.total.macs


@pytest.mark.xdist_group("cnn")
def test_file_without_hierarchy_is_refused(tmp_path: Path, exported: Exporter) -> None:
    model = onnx.load(exported("cnn").path)
    for node in model.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
        node.ClearField("name")
    onnx.save(model, tmp_path / "plain.onnx")
    with pytest.raises(FileFormatError, match="has no hierarchy"):
        profile_statically(tmp_path / "plain.onnx")


def test_file_whose_functions_expand_without_bound_is_refused(tmp_path: Path) -> None:
    onnx.save(function_bomb(24), tmp_path / "bomb.onnx")
    with pytest.raises(FileFormatError, match="after its functions are inlined"):
        profile_statically(tmp_path / "bomb.onnx")


@pytest.mark.xdist_group("cnn")
def test_report_shows_its_numbers_in_a_notebook(exported: Exporter) -> None:
    report = profile_statically(exported("cnn").path)
    assert f"macs={report.total.macs}" in repr(report)
    assert "features.0.norm" in report._repr_html_()
