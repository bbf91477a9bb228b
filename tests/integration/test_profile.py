"""Profiles of exported models: every kernel has an owner, and the slow module is the one that is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from tests.conftest import Exporter
from tests.support.command import Outcome
from tests.support.profile_check import violations
from torch import nn

import modelexport

LEVELS = ("off", "basic", "extended", "all")
Command = Callable[..., Outcome]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["bert", "cond"])
@pytest.mark.xdist_group("bert")
def test_every_kernel_has_an_owner_and_times_add_up(exported: Exporter, name: str, level: str) -> None:
    ours = exported(name)
    report = modelexport.profile(ours.path, ours.feeds, optimization=level, warmup=1, runs=3, threads=1)
    assert violations(report) == []
    assert report.settings.optimization == level


class Block(nn.Module):
    """A small product, and a wide one after it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.Linear(32, 32)
        self.mlp = nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, 32))
        self.norm = nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.mlp(self.attention(x)))


class Stack(nn.Module):
    """Blocks of which the third is a thousand times as wide."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Block(32_768 if number == 2 else 32) for number in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("slow") / "slow.onnx"
    modelexport.export_model(Stack().eval(), (torch.randn(1, 16, 32),), path)
    return path


@pytest.mark.parametrize("level", ["off", "all"])
def test_slow_module_is_named_first_also_where_its_nodes_are_fused(slow: Path, level: str) -> None:
    report = modelexport.profile(slow, optimization=level, warmup=1, runs=3)
    total = [row.name for row in report.rows("module", sort="total") if row.name.count(".") == 2]
    assert total[0] == "layers.2.mlp"
    assert report.rows("module")[0].name.startswith("layers.2.mlp.")
    owned = [kernel for kernel in report.kernels if kernel.call.startswith("layers.2.mlp")]
    assert all(kernel.kind == "exact" for kernel in owned) == (level == "off")


def test_splitting_fused_kernels_moves_time_to_the_calls_whose_work_they_do(slow: Path) -> None:
    report = modelexport.profile(slow, warmup=1, runs=3, split_fused=True)
    fused = {call for kernel in report.kernels for call in kernel.contributors}
    assert fused
    assert violations(report) == []
    without = {call.id for call in report.calls if not call.nodes}
    split = [call for call in report.calls if call.id in fused & without]
    assert split
    assert all(call.own.mean > 0 for call in split)


def test_module_on_another_provider_is_a_finding(exported: Exporter, command: Command) -> None:
    ours = exported("cnn")
    # Azure's provider has no kernels: onnxruntime runs all of them on the CPU instead.
    report = modelexport.profile(ours.path, providers=["azure"], warmup=0, runs=1)
    (finding,) = report.findings
    assert finding.rule == "provider-fallback"
    assert f"{len(report.kernels)} kernels of {len(report.kernels)} on CPUExecutionProvider" in finding.message
    assert not modelexport.profile(ours.path, providers=["cpu"], warmup=0, runs=1).findings
    ended = command("profile", ours.path, "--provider", "azure", "--warmup", 0, "--runs", 1)
    assert ended.code == 1
    assert "CPUExecutionProvider, not on azure" in ended.stdout


def test_source_line_is_that_of_the_most_expensive_node(slow: Path, command: Command) -> None:
    ended = command("profile", slow, "--runs", "2", "--source", "--by", "module", "--sort", "total")
    assert ended.code == 0
    assert "test_profile.py:" in ended.stdout


def test_report_fits_a_terminal_and_shows_the_overhead(
    slow: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ended = command("profile", slow, "--runs", "2", "--limit", "3", "--by", "class", "--source")
    lines = ended.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    (graph,) = [line for line in lines if line.startswith("|Stack")]
    assert "%" in graph
    (header,) = [line for line in lines if line.startswith("class ")]
    assert "share %" in header
    assert any(line.startswith("(runtime overhead)") for line in lines)
    assert "add up to the session" in ended.stdout


@pytest.mark.parametrize(
    ("sort", "columns"), [("own", ["share %"]), ("total", ["total %"]), ("memory", ["outputs", "weights"])]
)
def test_column_that_rows_are_sorted_by_is_shown_in_a_narrow_terminal(
    slow: Path, command: Command, monkeypatch: pytest.MonkeyPatch, sort: str, columns: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    ended = command("profile", slow, "--runs", "2", "--limit", "3", "--by", "class", "--source", "--sort", sort)
    (header,) = [line for line in ended.stdout.splitlines() if line.startswith("class ")]
    assert all(column in header for column in columns)
    assert "p90" not in header


@pytest.fixture
def cnn(exported: Exporter) -> Path:
    return exported("cnn").path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--runs", "0"), "0 runs measure nothing"),
        (("--warmup", "-1"), "warmup is -1"),
        (("--provider", "tensorrt"), "has no provider 'tensorrt' here"),
        (("--axis", "batch"), "write batch=8"),
        (("--axis", "batch=2"), "no dynamic axis 'batch'"),
        (("--axis", "batch=2", "--model", "builtin:bert-tiny"), "for synthesized inputs"),
        (("--input-text", "a"), "only for --model"),
        (("--input-shape", "x=1x2:int64"), "has the type of its inputs"),
        (("--inputs", "inputs.json"), "needs --model"),
        (("--select", "nothing.here"), "nothing.here"),
        (("--compare", "missing.json"), "missing.json cannot be read"),
        (("--compare", "missing.json", "--format", "csv"), "formats human and json"),
    ],
)
def test_wrong_option_is_one_error(cnn: Path, command: Command, options: tuple[str, ...], message: str) -> None:
    ended = command("profile", cnn, *options)
    assert ended.code == 2
    assert ended.stdout == ""
    assert message in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_file_without_hierarchy_or_that_onnxruntime_refuses_is_one_error(
    cnn: Path, tmp_path: Path, command: Command
) -> None:
    text = '<ir_version: 8, opset_import: ["" : 18]> g (float[4] x) => (float[4] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "plain.onnx")
    proto = onnx.load(cnn)
    proto.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(proto, tmp_path / "refused.onnx")
    for name, message in (("plain", "has no hierarchy"), ("refused", "onnxruntime cannot load")):
        ended = command("profile", tmp_path / f"{name}.onnx")
        assert (ended.code, ended.stdout) == (2, "")
        assert message in ended.stderr


def test_profiles_are_compared_with_a_saved_one_and_in_turns(cnn: Path, tmp_path: Path, command: Command) -> None:
    saved = tmp_path / "profile.json"
    assert command("profile", cnn, "--runs", "3", "-o", saved).code == 0
    ended = command("profile", cnn, "--runs", "3", "--compare", saved)
    assert ended.code == 0
    assert "within noise" in ended.stdout
    ended = command("compare", cnn, cnn, "--profile", "--runs", "3", "--format", "json")
    assert ended.code == 0
    assert '"common_factor": 1.0' in ended.stdout


@pytest.mark.parametrize("options", [("--runs", "3"), ("--profile", "--weights"), ("--profile", "-o", "a.html")])
def test_options_of_compare_that_would_have_no_effect_are_refused(
    cnn: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = command("compare", cnn, cnn, *options)
    assert (ended.code, ended.stdout) == (2, "")


def test_profile_of_another_model_is_refused(cnn: Path, exported: Exporter, tmp_path: Path, command: Command) -> None:
    saved = tmp_path / "profile.json"
    assert command("profile", exported("cond").path, "--runs", "1", "-o", saved).code == 0
    ended = command("profile", cnn, "--runs", "1", "--compare", saved)
    assert ended.code == 2
    assert "no module in common" in ended.stderr


def test_inputs_of_the_model_are_those_of_the_file(exported: Exporter, tmp_path: Path, command: Command) -> None:
    ours = exported("bert")
    arrays = tmp_path / "inputs.npz"
    np.savez(arrays, **ours.feeds)
    ended = command("profile", ours.path, "--inputs", arrays, "--runs", "1", "--warmup", "0", "--format", "csv")
    assert ended.code == 0
    assert ended.stdout.startswith("name,class,calls,own_seconds")
