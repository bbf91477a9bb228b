"""Owners found by value: those that fx recorded, for files whoever wrote them and whatever their tensors are called."""

from __future__ import annotations

import copy
import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import typer
from tests.conftest import Exported, Exporter, claims
from tests.support import zoo
from tests.support.eager_calls import record_calls
from tests.support.plain import export_plainly, fresh_generated_code
from tests.support.value_check import judge, run_onnx
from torch import nn
from typer.testing import CliRunner

import modelexport
from modelexport.capture.inputs import normalize_inputs
from modelexport.capture.module_tree import read_module_tree
from modelexport.capture.usage import Usage, attribute_by_usage
from modelexport.cli.tag import tag
from modelexport.document import HierarchyDocument
from modelexport.graph import identified_nodes
from modelexport.strategies.registry import StrategyRegistry
from modelexport.strategies.usage_based import UsageBasedStrategy
from modelexport.tagging import tag_file

pytestmark = pytest.mark.integration

_MODELS = (
    "bert",
    "gpt2",
    "vit",
    "resnet",
    "cnn",
    "lstm",
    "shared_block",
    "albert",
    "with_methods",
    "transformer_encoder",
    "nested_outputs",
    "aliased",
    "no_grad",
)
_SAME_OWNER = 0.9


def each(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in names])


def by_usage(graph: ir.Model, specimen: zoo.Specimen) -> Usage:
    args, kwargs = normalize_inputs(specimen.inputs, None)
    return attribute_by_usage(graph, specimen.model, read_module_tree(specimen.model), args, kwargs)


def stripped(path: Path) -> ir.Model:
    return ir.from_proto(modelexport.strip_hierarchy(onnx.load(path)))


@pytest.fixture(scope="session")
def tagged(exported: Exporter) -> Callable[[str], tuple[ir.Model, Usage]]:
    """The file that fx exported, without its tags, attributed by usage."""

    @cache
    def attribute(name: str) -> tuple[ir.Model, Usage]:
        graph = stripped(exported(name).path)
        return graph, by_usage(graph, exported(name).specimen)

    return attribute


Tagged = Callable[[str], tuple[ir.Model, Usage]]


class Confusion:
    """How the owners found compare with those recorded: the same, a caller or callee of it, or a stranger."""

    def __init__(self, name: str, graph: ir.Model, usage: Usage, recorded: HierarchyDocument) -> None:
        parents = {call.id: call.parent for call in recorded.calls}
        owners = {node.id: node.module for node in recorded.nodes}
        self.name = name
        self.counts: Counter[str] = Counter(same=0, related=0, stranger=0)
        self.strangers: list[str] = []
        for identity, node in identified_nodes(graph):
            found, truth = str(usage.attributions[node].owner), owners[identity]
            if found == truth:
                self.counts["same"] += 1
            elif found in _chain(truth, parents) or truth in _chain(found, parents):
                self.counts["related"] += 1
            elif node.inputs:
                self.counts["stranger"] += 1
                self.strangers.append(f"{identity}: {found!r}, recorded {truth!r}; {usage.attributions[node].reason}")
            else:
                # Exporters share constants: recorded is who was first, used it may be by others alone.
                self.counts["constant"] += 1

    @property
    def part_with_same_owner(self) -> float:
        return self.counts["same"] / self.counts.total()

    def __str__(self) -> str:
        return f"{self.name:20} {self.part_with_same_owner:6.1%} " + " ".join(
            f"{k} {n}" for k, n in self.counts.items()
        )


def _chain(call: str | None, parents: dict[str, str | None]) -> list[str]:
    found = []
    while call is not None:
        found.append(call)
        call = parents[call]
    return found


# --- owners ----------------------------------------------------------------------------------------------------


@each(*_MODELS)
def test_owners_are_those_that_fx_recorded(exported: Exporter, tagged: Tagged, name: str) -> None:
    confusion = Confusion(name, *tagged(name), exported(name).document)
    print(confusion)  # noqa: T201  for whoever reads the test's output
    assert confusion.strangers == []
    assert confusion.part_with_same_owner >= _SAME_OWNER


@each(*_MODELS)
def test_nothing_is_claimed_to_be_recorded(tagged: Tagged, name: str) -> None:
    graph, usage = tagged(name)
    assert usage.agrees
    for _, node in identified_nodes(graph):
        found = usage.attributions[node]
        assert found.kind != "exact"
        assert 0 < found.confidence < 1
        assert found.reason
        assert {found.owner, *found.contributors} <= {call.id for call in usage.calls}
        assert found.owner not in found.contributors


@each(*_MODELS)
def test_calls_are_those_that_fx_saw(exported: Exporter, tagged: Tagged, name: str) -> None:
    recorded = exported(name).document.calls
    found = list(tagged(name)[1].calls)
    assert [(str(call.id), call.parent and str(call.parent)) for call in found] == [(c.id, c.parent) for c in recorded]
    names = [[tensor.name for tensor in call.inputs] for call in recorded if call.id]
    assert [[tensor.name for tensor in call.inputs] for call in found if call.path] == names


@each(*_MODELS)
def test_boundary_tensors_hold_what_the_module_was_given_and_returned(
    exported: Exporter, tagged: Tagged, name: str
) -> None:
    ours = exported(name)
    eager = record_calls(ours.specimen.model, ours.args, ours.kwargs)
    tensors = {**run_onnx(ours.path, ours.feeds), **ours.feeds}
    found = total = 0
    for call in tagged(name)[1].calls:
        seen = eager[str(call.id)]
        for boundaries, values in ((call.inputs, seen.inputs), (call.outputs, seen.outputs)):
            for boundary in boundaries:
                total += 1
                if boundary.tensor in tensors and boundary.name in values:
                    tensor = tensors[boundary.tensor].astype(np.float32)
                    np.testing.assert_allclose(
                        tensor, values[boundary.name], rtol=1e-3, atol=1e-4, err_msg=str(call.id)
                    )
                    found += 1
    print(f"{name:20} {found} of {total} boundary tensors found")  # noqa: T201  for whoever reads the test's output
    assert found >= 0.6 * total


@each("bert", "resnet", "albert", "with_methods", "no_grad")
def test_no_node_is_owned_by_a_module_that_did_not_compute_it(exported: Exporter, tagged: Tagged, name: str) -> None:
    ours = exported(name)
    graph, usage = tagged(name)
    claimed = {
        value.name or "": tuple(str(call) for call in (found.owner, *found.contributors))
        for node, found in usage.attributions.items()
        for value in node.outputs
    }
    assert set(claimed) == set(claims(ours))
    assert len(identified_nodes(graph)) == len(usage.attributions)
    verdict = judge(ours.path, claimed, ours.specimen.model, ours.args, ours.kwargs, ours.feeds)
    assert verdict.contaminated == ()
    assert verdict.judged >= 3


@each("bert", "resnet", "shared_block", "with_methods", "nested_outputs")
def test_names_in_the_file_decide_nothing(exported: Exporter, tagged: Tagged, name: str) -> None:
    graph = stripped(exported(name).path)
    values = [*graph.graph.inputs, *graph.graph.initializers.values()]
    values += [value for node in graph.graph.all_nodes() for value in node.outputs]
    for number, value in enumerate(values):
        value.name = f"t{number}"
    for number, node in enumerate(graph.graph.all_nodes()):
        node.name = f"n{number}"
    renamed = by_usage(graph, exported(name).specimen)
    expected = [tagged(name)[1].attributions[node] for _, node in identified_nodes(tagged(name)[0])]
    assert [renamed.attributions[node] for _, node in identified_nodes(graph)] == expected


@each("bert", "vit", "resnet", "cnn", "lstm", "shared_block", "with_methods", "transformer_encoder", "nested_outputs")
def test_owners_in_a_torchscript_file_are_those_that_htp_recorded(tmp_path: Path, name: str) -> None:
    specimen = zoo.build(name)
    result = modelexport.export_model(specimen.model, specimen.inputs, tmp_path / "model.onnx", strategy="htp")
    graph = stripped(result.onnx_path)
    confusion = Confusion(name, graph, by_usage(graph, specimen), result.document)
    print(confusion)  # noqa: T201  for whoever reads the test's output
    assert confusion.strangers == []
    assert confusion.part_with_same_owner >= 0.75


@pytest.mark.xdist_group("bert")
def test_fused_nodes_of_an_optimizer_name_the_calls_they_work_for(exported: Exporter, tmp_path: Path) -> None:
    ours = exported("bert")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(ours.path, options, ["CPUExecutionProvider"])
    graph = stripped(tmp_path / "optimized.onnx")
    usage = by_usage(graph, ours.specimen)
    fused = {
        str(found.owner): [str(call) for call in found.contributors]
        for found in usage.attributions.values()
        if found.kind == "fused"
    }
    for layer in ("encoder.layer.0", "encoder.layer.1"):
        assert fused[f"{layer}.output.LayerNorm"] == [f"{layer}.output"]
        assert fused[f"{layer}.attention.output.LayerNorm"] == [f"{layer}.attention.output"]
    assert fused["pooler.activation"] == ["pooler.dense"]


@pytest.mark.xdist_group("cnn")
def test_folded_batchnorm_names_the_convolution_too(tagged: Tagged) -> None:
    found = [found for found in tagged("cnn")[1].attributions.values() if found.kind == "fused"]
    assert [(str(one.owner), [str(call) for call in one.contributors]) for one in found] == [
        ("features.0.norm", ["features.0.conv"]),
        ("features.2.norm", ["features.2.conv"]),
    ]


@pytest.mark.xdist_group("with_methods")
def test_node_that_serves_several_calls_names_all_of_them(tagged: Tagged) -> None:
    merged = [found for found in tagged("with_methods")[1].attributions.values() if found.kind == "merged"]
    assert {str(found.owner) for found in merged} == {"", "child.lin", "child.steps.0", "child.steps.1"}
    assert all(found.contributors for found in merged)


# --- where values cannot decide --------------------------------------------------------------------------------


class Relu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.lin(x))


class Twins(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = Relu()
        self.other = copy.deepcopy(self.one)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) + self.other(x)


class Stages(nn.Module):
    """Layers that add nothing: by their values, each could be any of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Relu() for _ in range(3)])
        self.scale = nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x) * self.scale
        return x


class Quiet(nn.Module):
    """A norm right behind a linear layer with no bias to speak of, and dropout in between."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.LayerNorm(8), nn.Identity(), nn.GELU())
        nn.init.zeros_(self.parts[0].bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts(x)


class Numbers(nn.Module):
    """Whole numbers only: their values say nothing by themselves."""

    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 + 1

    def __init__(self) -> None:
        super().__init__()
        self.odd = self.Odd()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(self.odd(x) > 3, self.odd(x), x)


@pytest.mark.parametrize("exporter", ["fx", "htp"])
@pytest.mark.parametrize("optimize", [True, False], ids=["optimized", "raw"])
@pytest.mark.parametrize("build", [Twins, Stages, Quiet, Numbers])
def test_no_stranger_owns_a_node_where_values_are_alike(
    build: type[nn.Module], optimize: bool, exporter: str, tmp_path: Path
) -> None:
    x = torch.randint(0, 5, (4, 8)) if build is Numbers else torch.randn(4, 8)
    specimen = zoo.Specimen(build.__name__, build().eval(), x)
    result = modelexport.export_model(
        specimen.model, x, tmp_path / "model.onnx", strategy=exporter, optimize=optimize, opset_version=18
    )
    graph = stripped(result.onnx_path)
    confusion = Confusion(specimen.name, graph, by_usage(graph, specimen), result.document)
    assert confusion.strangers == []


def test_candidates_are_named_where_nothing_decides(tmp_path: Path) -> None:
    model, x = Twins().eval(), torch.randn(4, 8)
    result = modelexport.export_model(model, x, tmp_path / "model.onnx", strategy="fx", optimize=False)
    graph = stripped(result.onnx_path)
    usage = by_usage(graph, zoo.Specimen("twins", model, x))
    found = next(usage.attributions[node] for node in graph.graph if len(node.inputs) == 1)
    assert str(found.owner) == ""
    assert [str(call) for call in found.contributors] == ["one", "other"]
    assert "one, other" in found.reason


@pytest.mark.xdist_group("cond")
def test_nodes_in_branches_stay_with_the_node_that_holds_them(exported: Exporter) -> None:
    graph = stripped(exported("cond").path)
    usage = by_usage(graph, exported("cond").specimen)
    inside = [usage.attributions[node] for identity, node in identified_nodes(graph) if "_branch/" in identity]
    assert {str(found.owner) for found in inside} == {""}


def test_order_of_the_nodes_in_the_file_makes_no_difference(tmp_path: Path) -> None:
    specimen = zoo.build("shared_block")
    proto = export_plainly(specimen.model, (specimen.inputs,), {}, tmp_path / "model.onnx")
    ordered = ir.from_proto(proto)
    nodes = list(reversed(proto.graph.node))
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    shuffled = ir.from_proto(proto)
    owners = {
        identity: str(by_usage(ordered, specimen).attributions[n].owner) for identity, n in identified_nodes(ordered)
    }
    usage = by_usage(shuffled, specimen)
    assert {identity: str(usage.attributions[node].owner) for identity, node in identified_nodes(shuffled)} == owners


# --- the strategy ----------------------------------------------------------------------------------------------

_REGISTRY = StrategyRegistry((UsageBasedStrategy(),))


def export_by_usage(specimen: zoo.Specimen, path: Path, **options: Any) -> modelexport.ExportResult:
    fresh_generated_code()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return modelexport.export_model(
            specimen.model, specimen.inputs, path, strategy="usage_based", registry=_REGISTRY, **options
        )


@each("cnn", "shared_block")
def test_strategy_writes_the_file_that_plain_torch_writes(tmp_path: Path, name: str) -> None:
    specimen = zoo.build(name)
    result = export_by_usage(specimen, tmp_path / "ours.onnx")
    plain = export_plainly(specimen.model, (specimen.inputs,), {}, tmp_path / "plain.onnx")
    assert modelexport.strip_hierarchy(onnx.load(result.onnx_path)) == plain
    assert result.strategy == "usage_based"
    assert result.coverage == 1.0
    loaded = modelexport.load(result.onnx_path)
    assert loaded.document == result.document


def test_strategy_takes_the_torchscript_exporter_where_dynamo_fails(tmp_path: Path, monkeypatch: Any) -> None:
    original = torch.onnx.export

    def fail(*args: Any, dynamo: bool = True, **options: Any) -> Any:
        if dynamo:
            raise RuntimeError("not today")
        return original(*args, dynamo=dynamo, **options)

    monkeypatch.setattr(torch.onnx, "export", fail)
    result = export_by_usage(zoo.build("shared_block"), tmp_path / "model.onnx")
    assert result.document.exporter == "torchscript"
    assert [attempt.error is None for attempt in result.attempts] == [False, True]
    assert {"blk.lin", "blk.lin@1", "blk.lin@2", "out"} <= {node.module for node in result.document.nodes}


def test_missing_runtime_is_said_before_anything_is_exported(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: pytest.fail("exported"))
    with pytest.raises(modelexport.ModelExportError, match=r"pip install 'modelexport\[runtime\]'"):
        export_by_usage(zoo.build("shared_block"), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


# --- finished files --------------------------------------------------------------------------------------------


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A file as plain torch writes it, weights beside it."""
    specimen = zoo.build("cnn")
    path = tmp_path / "plain.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(specimen.model, (specimen.inputs,), str(path), dynamo=True, verbose=False, external_data=True)
    assert (tmp_path / "plain.onnx.data").exists()
    return path


def read(path: Path, *, weights: bool = False) -> onnx.ModelProto:
    return onnx.load(path, load_external_data=weights)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_tagged_file_is_the_given_one_but_for_tags(plain: Path, tmp_path: Path) -> None:
    specimen, before = zoo.build("cnn"), content(tmp_path)
    result = tag_file(plain, specimen.model, specimen.inputs, tmp_path / "tagged.onnx")
    assert modelexport.strip_hierarchy(read(result.onnx_path)) == read(plain)
    assert content(tmp_path).items() >= before.items()
    assert set(content(tmp_path)) - set(before) == {"tagged.onnx", "tagged_hierarchy.json"}
    onnx.checker.check_model(result.onnx_path, full_check=True)
    assert modelexport.load(result.onnx_path).document == result.document
    assert result.document.exporter.startswith("pytorch")
    assert {"features.0.norm", "head"} <= {node.module for node in result.document.nodes}
    assert result["summary"]["success"]


def test_weights_come_along_to_another_folder(plain: Path, tmp_path: Path) -> None:
    specimen = zoo.build("cnn")
    (tmp_path / "other").mkdir()
    result = tag_file(plain, specimen.model, specimen.inputs, tmp_path / "other" / "model.onnx")
    assert {path.name for path in result.files} == {"model.onnx", "model_hierarchy.json", "plain.onnx.data"}
    assert modelexport.strip_hierarchy(read(result.onnx_path, weights=True)) == read(plain, weights=True)
    again = tag_file(plain, specimen.model, specimen.inputs, tmp_path / "other" / "model.onnx")
    assert again.document == result.document


def test_file_is_replaced_where_no_output_is_named(plain: Path) -> None:
    specimen, before = zoo.build("cnn"), read(plain, weights=True)
    first = tag_file(plain, specimen.model, specimen.inputs)
    assert first.onnx_path == plain
    second = tag_file(plain, specimen.model, specimen.inputs, torch_nn_exceptions="all")
    assert modelexport.strip_hierarchy(read(plain, weights=True)) == before
    assert len({node.tag for node in second.document.nodes}) > len({node.tag for node in first.document.nodes})


def test_own_export_keeps_its_weights_when_tagged_in_place(tmp_path: Path) -> None:
    specimen = zoo.build("cnn")
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        modelexport.export_model(specimen.model, specimen.inputs, path, external_data=True)
    before, files = modelexport.strip_hierarchy(read(path, weights=True)), set(content(tmp_path))
    tag_file(path, specimen.model, specimen.inputs)
    assert modelexport.strip_hierarchy(read(path, weights=True)) == before
    assert set(content(tmp_path)) == files
    assert modelexport.load(path).document is not None


def test_existing_output_is_refused_unless_it_may_be_replaced(plain: Path, tmp_path: Path) -> None:
    specimen, before = zoo.build("cnn"), content(tmp_path)
    with pytest.raises(modelexport.InputError, match="it exists"):
        tag_file(plain, specimen.model, specimen.inputs, overwrite=False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "plain.onnx.data").write_bytes(b"of another model")
    with pytest.raises(modelexport.InputError, match=r"plain\.onnx\.data: it exists"):
        tag_file(plain, specimen.model, specimen.inputs, tmp_path / "other" / "model.onnx", overwrite=False)
    assert content(tmp_path) == before
    assert content(tmp_path / "other") == {"plain.onnx.data": b"of another model"}


def test_weights_outside_the_folder_are_not_read(plain: Path, tmp_path: Path) -> None:
    specimen = zoo.build("cnn")
    inner = tmp_path / "inner"
    inner.mkdir()
    proto = read(plain)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../plain.onnx.data"
    (inner / "model.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(modelexport.FileFormatError, match="outside its folder"):
        tag_file(inner / "model.onnx", specimen.model, specimen.inputs)
    assert set(content(inner)) == {"model.onnx"}


def test_weights_in_a_folder_of_their_own_stay_there(plain: Path, tmp_path: Path) -> None:
    specimen = zoo.build("cnn")
    (tmp_path / "weights").mkdir()
    (tmp_path / "plain.onnx.data").rename(tmp_path / "weights" / "data")
    proto = read(plain)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "weights/data"
    plain.write_bytes(proto.SerializeToString())
    tag_file(plain, specimen.model, specimen.inputs, tmp_path / "tagged.onnx")
    assert modelexport.strip_hierarchy(read(tmp_path / "tagged.onnx")) == proto
    (tmp_path / "other").mkdir()
    with pytest.raises(modelexport.InputError, match="beside that folder"):
        tag_file(plain, specimen.model, specimen.inputs, tmp_path / "other" / "model.onnx")


def test_model_with_other_weights_is_refused_and_nothing_written(plain: Path, tmp_path: Path) -> None:
    before = content(tmp_path)
    torch.manual_seed(1)
    with pytest.raises(modelexport.InputError, match=r"does not compute what Cnn computes .* 0 of its 7 tensors"):
        tag_file(plain, zoo.Cnn(), zoo.build("cnn").inputs)
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((torch.randn(2, 3, 16, 16), torch.zeros(1)), "do not fit Cnn.forward"),
        ("text", "example inputs are a str"),
        (torch.randn(2, 4, 16, 16), "Cnn.forward fails on the example inputs"),
        (torch.randn(1, 3, 16, 16), "onnxruntime cannot run the graph"),
    ],
    ids=["too many", "no tensor", "wrong for the model", "wrong for the file"],
)
def test_inputs_that_do_not_fit_are_named(plain: Path, tmp_path: Path, inputs: object, message: str) -> None:
    before = content(tmp_path)
    with pytest.raises(modelexport.ModelExportError, match=message):
        tag_file(plain, zoo.build("cnn").model, inputs)
    assert content(tmp_path) == before


def test_model_and_torch_are_left_as_they_were(plain: Path, tmp_path: Path) -> None:
    specimen = zoo.build("cnn")
    model = specimen.model.train()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    numbers = torch.get_rng_state()
    tag_file(plain, model, specimen.inputs, tmp_path / "tagged.onnx")
    assert all(module.training for module in model.modules())
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(torch.get_rng_state(), numbers)
    assert torch.backends.mha.get_fastpath_enabled()


# --- the command -----------------------------------------------------------------------------------------------

_APP = typer.Typer()
_APP.command()(tag)


@pytest.fixture
def factory(monkeypatch: Any) -> str:
    """A MODEL argument for the specimen that `plain` was made of."""
    module = type(sys)("factory_for_tag")
    specimen = zoo.build("cnn")
    monkeypatch.setattr(module, "make", lambda: (specimen.model, specimen.inputs), raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return f"{module.__name__}:make"


def test_command_tags_a_file(plain: Path, tmp_path: Path, factory: str) -> None:
    output = tmp_path / "tagged.onnx"
    ran = CliRunner().invoke(_APP, [str(plain), "--model", factory, "-o", str(output), "--format", "json"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["onnx_path"] == str(output)
    assert modelexport.load(output).document is not None
    assert "known by value" in ran.stderr


def test_command_refuses_to_replace_the_file_without_force(plain: Path, tmp_path: Path, factory: str) -> None:
    before = content(tmp_path)
    ran = CliRunner().invoke(_APP, [str(plain), "--model", factory])
    assert isinstance(ran.exception, modelexport.InputError)
    assert content(tmp_path) == before
    ran = CliRunner().invoke(_APP, [str(plain), "--model", factory, "--force"])
    assert ran.exit_code == 0, ran.output
    assert "next: modelexport tree" in ran.stdout


def test_command_names_a_file_that_is_missing(tmp_path: Path, factory: str) -> None:
    ran = CliRunner().invoke(_APP, [str(tmp_path / "no.onnx"), "--model", factory, "--force"])
    assert isinstance(ran.exception, modelexport.InputError)
    assert "no.onnx is not a file" in str(ran.exception)


def test_everything_is_found_of_what_a_tagged_file_says(exported: Exporter, tmp_path: Path) -> None:
    """The same answers from the command's file as from an export of our own."""
    ours: Exported = exported("shared_block")
    specimen = ours.specimen
    plainly = export_plainly(specimen.model, ours.args, ours.kwargs, tmp_path / "plain.onnx")
    result = tag_file(tmp_path / "plain.onnx", specimen.model, specimen.inputs)
    assert len(result.document.nodes) == len(plainly.graph.node)
    assert [node.module for node in result.document.nodes] == [node.module for node in ours.document.nodes]
    assert [module.tag for module in result.document.modules] == [module.tag for module in ours.document.modules]
