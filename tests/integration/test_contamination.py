"""Wrong owners are found from the file alone, and right ones are not reported."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from tests.conftest import Exporter
from tests.support import zoo
from tests.support.breaking import (
    all_at_once,
    near_moves,
    random_moves,
    read_document,
    suspects,
    suspects_when_moved,
    with_owners,
    write_artifact,
)

import modelexport
from modelexport.analysis.validation.rule import ValidatedFile
from modelexport.analysis.validation.validator import validate

pytestmark = pytest.mark.integration

_MOVES = 30
# The required rate from the file alone. Most models are near 100 %: docs/measurements/contamination.md.
_ENOUGH = 0.7


def _variants() -> list[object]:
    return [
        pytest.param(name, dynamic, optimize, id=f"{name}-{dynamic}-{optimize}", marks=pytest.mark.xdist_group(name))
        for name in zoo.names()
        for dynamic in ((False, True) if zoo.build(name).dynamic_shapes is not None else (False,))
        for optimize in (True, False)
    ]


every_variant = pytest.mark.parametrize(("name", "dynamic", "optimize"), _variants())


@every_variant
def test_exported_file_has_no_findings(exported: Exporter, name: str, dynamic: bool, optimize: bool) -> None:
    report = validate(exported(name, dynamic=dynamic, optimize=optimize).path, check_contamination=True)
    assert report.findings == ()


@every_variant
def test_wrong_owners_are_found(exported: Exporter, name: str, dynamic: bool, optimize: bool) -> None:
    path = exported(name, dynamic=dynamic, optimize=optimize).path
    document = read_document(path)
    check = ValidatedFile(path).owner_check
    for moves in (random_moves(document, _MOVES, seed=4), near_moves(document, _MOVES, seed=5)):
        found = [node for node, owner in moves if node in suspects_when_moved(check, node, owner)]
        rate = len(found) / len(moves)
        assert rate >= _ENOUGH, f"{len(found)} of {len(moves)}"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("cond", "with_methods", "vit")]
)
def test_check_of_the_affected_nodes_finds_the_same_as_the_check_of_all(exported: Exporter, name: str) -> None:
    path = exported(name, optimize=False).path
    document = read_document(path)
    check = ValidatedFile(path).owner_check
    for node, owner in (*random_moves(document, 15, seed=8), *near_moves(document, 15, seed=9)):
        assert suspects_when_moved(check, node, owner) == suspects(check, {node: owner})


@pytest.mark.xdist_group("bert")
def test_node_that_the_inputs_of_a_call_depend_on_is_found_in_that_call(exported: Exporter) -> None:
    # Sizes may be Python numbers, which cross the boundaries of calls unrecorded: only the order decides.
    path = exported("bert", dynamic=True, optimize=False).path
    check = ValidatedFile(path).owner_check
    producers = {name: node for node in onnx.load(path).graph.node for name in node.output}
    (call,) = (call for call in check.document.calls if call.id == "encoder")
    pending, before = [tensor.tensor for tensor in call.inputs], set[str]()
    while pending:
        node = producers.get(pending.pop() or "")
        if node is not None and node.output[0] not in before:
            before.add(node.output[0])
            pending += node.input
    records = [record for record in check.document.nodes if record.id in before]
    own = [record.id for record in records if not record.module and record.kind == "exact"]
    assert len(own) > 20
    assert [node for node in own if node not in suspects_when_moved(check, node, "encoder")] == []


def test_merged_constant_is_found_in_every_call_that_consumes_no_constant(tmp_path: Path) -> None:
    example = zoo.build("with_methods")
    path = tmp_path / "m.onnx"
    document = modelexport.export_model(example.model, example.inputs, path, strategy="htp").document
    check = ValidatedFile(path).owner_check
    assert check.findings() == []
    (constant,) = [node for node in document.nodes if node.op == "Constant" and node.kind == "merged"]
    others = [call.id for call in document.calls if call.id not in (constant.module, *constant.contributors)]
    assert len(others) == 6
    assert [call for call in others if constant.id not in suspects_when_moved(check, constant.id, call)] == []


@pytest.mark.xdist_group("bert")
def test_right_owner_is_suggested_and_neighbors_are_not_reported(exported: Exporter) -> None:
    path = exported("bert").path
    document = read_document(path)
    owners = {node.id: node.module for node in document.nodes}
    check = ValidatedFile(path).owner_check
    right = blamed = 0
    moves = random_moves(document, 60, seed=6)
    for node, owner in moves:
        found = check.suspects(with_owners(document, {node: owner}))
        blamed += sum(check.flow.node_ids[suspect.node] != node for suspect in found)
        named = {check.flow.node_ids[s.node]: [check.calls.ids[c] for c in s.supported] for s in found}
        right += named.get(node, [])[:1] == [owners[node]]
    assert right / len(moves) >= 0.95
    assert blamed / len(moves) <= 0.05


@pytest.mark.xdist_group("bert")
def test_many_wrong_owners_in_one_file_are_reported(exported: Exporter, tmp_path: Path) -> None:
    source = exported("bert").path
    document = read_document(source)
    moves = all_at_once(document, 20, seed=7)
    path = write_artifact(tmp_path / "broken.onnx", onnx.load(source), with_owners(document, moves))
    cases = {case.node: case for case in validate(path, check_contamination=True).cases}
    assert len(moves.keys() & cases.keys()) >= 0.9 * len(moves)
    assert all(cases[node].module == moves[node] for node in moves.keys() & cases.keys())


@pytest.mark.xdist_group("bert")
def test_if_every_owner_is_wrong_all_are_reported_and_better_owners_searched_for_the_first(
    exported: Exporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = exported("bert")
    calls = [call.id for call in ours.document.calls]
    wrong = {node.id: calls[(calls.index(node.module) + 7) % len(calls)] for node in ours.document.nodes}
    path = write_artifact(tmp_path / "wrong.onnx", onnx.load(ours.path), with_owners(ours.document, wrong))
    monkeypatch.setattr("modelexport.analysis.contamination.owner_check.MAX_SEARCHED", 10)
    found = [f.case for f in validate(path, check_contamination=True).findings if f.case is not None]
    assert len(found) > 40
    assert sum(bool(case.supported_modules) for case in found) <= 10


class _Padding(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, torch.zeros(x.shape[0], 2)], dim=1)


class _Padded(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)
        self.pad = _Padding()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pad(self.lin(x))


@pytest.mark.xdist_group("sizes")
@pytest.mark.filterwarnings("ignore")
def test_size_that_the_exporter_reads_from_a_model_input_for_an_inner_call_is_not_reported(tmp_path: Path) -> None:
    batch = torch.export.Dim.AUTO
    result = modelexport.export_model(
        _Padded().eval(), torch.randn(3, 4), tmp_path / "m.onnx", strategy="fx", dynamic_shapes=({0: batch},)
    )
    graph = onnx.load(result.onnx_path).graph
    sizes = [node.output[0] for node in graph.node if node.input[:1] == [graph.input[0].name] and len(node.input) == 1]
    records = {node.id: node for node in result.document.nodes}
    assert any((records[size].module, records[size].kind) == ("pad", "inferred") for size in sizes)
    assert validate(result.onnx_path, check_contamination=True).findings == ()


class _Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * torch.relu(x) ** 2 + self.bias


@pytest.mark.regression
def test_constant_that_the_exporter_merged_with_an_equal_weight_is_not_reported(tmp_path: Path) -> None:
    """The normalization is written with a scale of one and a bias of zero, and a weight elsewhere holds just those."""
    model = torch.nn.Sequential(torch.nn.GroupNorm(1, 8), _Scaled())
    result = modelexport.export_model(model, torch.randn(2, 8, 4, 4), tmp_path / "model.onnx", strategy="fx")
    owners = {node.id: node.module for node in result.document.nodes}
    readers = [owners[node.output[0]] for node in onnx.load(result.onnx_path).graph.node if "1.scale" in node.input]
    assert readers == ["0", "1"]
    assert validate(result.onnx_path, check_contamination=True).findings == ()


class _Norm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.register_buffer("steps", torch.arange(8.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(x)) + self.steps


class _Constant(torch.nn.Module):
    """Computes with a constant that no module holds."""

    def __init__(self, content: torch.Tensor) -> None:
        super().__init__()
        self.content = (content,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * self.content[0]


@pytest.mark.regression
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("content", [torch.ones(8), torch.zeros(8), torch.arange(8.0)], ids=["ones", "zeros", "steps"])
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("fx", {}),
        ("fx", {"optimize": False}),
        ("htp", {}),
        ("htp", {"do_constant_folding": False}),
        ("usage_based", {}),
    ],
)
def test_constant_that_equals_the_weights_of_several_modules_is_not_reported(
    content: torch.Tensor, strategy: str, options: dict[str, bool], tmp_path: Path
) -> None:
    """Weights of a fresh model are often alike, and the exporter keeps one of several with the same content."""
    model = torch.nn.Sequential(_Norm(), _Constant(content), _Norm())
    result = modelexport.export_model(model, torch.randn(2, 8), tmp_path / "m.onnx", strategy=strategy, **options)
    owners = {node.id: node.module for node in result.document.nodes}
    read: dict[str, set[str]] = {}
    for node in onnx.load(result.onnx_path).graph.node:
        for name in node.input:
            read.setdefault(name, set()).add(owners[node.output[0]])
    if strategy == "fx" and not options:
        merged = [name for name, readers in read.items() if "1" in readers and name.startswith("0.")]
        assert len(merged) == 1, "the constant is one with a weight of another module"
    assert validate(result.onnx_path, check_contamination=True).findings == ()


@pytest.mark.regression
def test_weight_that_only_another_module_consumes_is_reported(tmp_path: Path) -> None:
    model = torch.nn.Sequential(_Norm(), _Constant(torch.ones(8)), _Norm())
    result = modelexport.export_model(model, torch.randn(2, 8), tmp_path / "m.onnx", strategy="fx", optimize=False)
    readers = [n.output[0] for n in onnx.load(result.onnx_path).graph.node if "0.norm.weight" in n.input]
    broken = with_owners(read_document(result.onnx_path), dict.fromkeys(readers, "1"))
    path = write_artifact(tmp_path / "broken.onnx", onnx.load(result.onnx_path), broken)
    assert set(readers) <= {case.node for case in validate(path, check_contamination=True).cases}
