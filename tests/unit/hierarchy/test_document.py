"""The document: JSON both ways, the published schema, and what it tells of a module."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any

import jsonschema
import msgspec
import pytest
import torch
from tests.support import zoo
from torch import nn

from modelexport.errors import FileFormatError, ModelExportError
from modelexport.exporting.export import export_model
from modelexport.exporting.result import ExportResult
from modelexport.hierarchy.document import (
    SCHEMA_VERSION,
    CallRecord,
    HierarchyDocument,
    ModuleRecord,
    NodeRecord,
    Producer,
)
from modelexport.hierarchy.document_codec import decode_document
from modelexport.hierarchy.file_check import CheckOutcome, FileCheck
from modelexport.hierarchy.modules import TensorInfo
from modelexport.hierarchy.tags import TagView

pytestmark = pytest.mark.xdist_group("document")
SOURCE = "some/where/model_hierarchy.json"


# --- real documents --------------------------------------------------------------------------------------------


class Scale(nn.Module):
    """A module with a parameter and a buffer of its own, a child, and every kind of argument."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(3, 1))
        self.register_buffer("offset", torch.zeros(4, dtype=torch.float64))
        self.lin = nn.Linear(4, 4, bias=False)

    def forward(
        self, x: torch.Tensor, /, y: torch.Tensor, flag: bool = True, *rest: Any, z: torch.Tensor, **more: Any
    ) -> dict[str, torch.Tensor]:
        product = self.lin(x) * self.factor + self.offset.to(x.dtype)
        return {"product": product if flag else x, "sum": y + z}


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.ones(4))
        self.steps = nn.ModuleList([Scale()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.steps[0](x + self.bias, x, z=x * 2)
        return result["product"] + result["sum"]


@dataclasses.dataclass(frozen=True)
class Case:
    model: nn.Module
    result: ExportResult

    @property
    def document(self) -> HierarchyDocument:
        return self.result.document


CASES = ("outer", "aliased", "nested_outputs", "cnn")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("documents")
    made: dict[str, Case] = {}
    for name in CASES:
        example = zoo.ExampleModel("outer", Outer().eval(), torch.randn(3, 4)) if name == "outer" else zoo.build(name)
        result = export_model(
            example.model,
            example.inputs,
            folder / f"{name}.onnx",
            dynamic_shapes=example.dynamic_shapes,
            torch_nn_exceptions="all" if name == "outer" else None,
        )
        made[name] = Case(example.model, result)
    return made


def information(case: Case, path: str) -> dict[str, Any]:
    """What the document tells of a module, as whoever reads it as JSON gets it."""
    told: dict[str, Any] = json.loads(json.dumps(case.document.module_information(path)))
    return told


def written(case: Case) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(case.result.sidecar_path.read_bytes())
    return content


@pytest.mark.sanity
@pytest.mark.parametrize("name", CASES)
def test_schema_admits_the_sidecar_of_an_export(
    validator: jsonschema.Draft202012Validator, cases: dict[str, Case], name: str
) -> None:
    validator.validate(written(cases[name]))
    assert decode_document(cases[name].result.sidecar_path.read_bytes(), SOURCE) == cases[name].document


def test_dynamic_axes_are_names_in_a_boundary(cases: dict[str, Case]) -> None:
    (call,) = information(cases["cnn"], "")["calls"]
    (entering,) = call["inputs"]
    assert isinstance(entering["info"]["shape"][0], str)
    assert entering["info"]["shape"][1:] == [3, 16, 16]


BREAKS: dict[str, Any] = {
    "no schema version": lambda d: d.pop("schema_version"),
    "no nodes": lambda d: d.pop("nodes"),
    "no tag of a node": lambda d: d["nodes"][0].pop("tag"),
    "no owner of a node": lambda d: d["nodes"][0].pop("module"),
    "a kind nobody knows": lambda d: d["nodes"][0].update(kind="guessed"),
    "confidence in words": lambda d: d["nodes"][0].update(confidence="high"),
    "a module that is text": lambda d: d["modules"].append("encoder"),
    "modules by name": lambda d: d.update(modules={}),
    "an axis that is a list": lambda d: d["modules"][1]["parameters"].update(w={"shape": [[1]], "dtype": "float32"}),
    "a parameter without a type": lambda d: d["modules"][1]["parameters"].update(w={"shape": [1]}),
    "a call without an index": lambda d: d["calls"][0].pop("index"),
    "null for a strategy": lambda d: d.update(strategy=None),
    "exceptions in one word": lambda d: d["tag_view"].update(torch_nn_exceptions="some"),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_broken_document_is_refused_by_the_schema_and_by_us(
    validator: jsonschema.Draft202012Validator, cases: dict[str, Case], broken: str
) -> None:
    content = written(cases["outer"])
    content["modules"][1].setdefault("parameters", {})
    assert validator.is_valid(content)
    BREAKS[broken](content)
    assert not validator.is_valid(content)
    with pytest.raises(FileFormatError, match=SOURCE):
        decode_document(json.dumps(content).encode(), SOURCE)


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1, 10**30])
def test_unknown_schema_version_is_refused_with_both_versions(cases: dict[str, Case], version: int) -> None:
    data = json.dumps(written(cases["outer"]) | {"schema_version": version}).encode()
    with pytest.raises(FileFormatError, match=rf"{SOURCE} has schema version {version}, .* reads {SCHEMA_VERSION}"):
        decode_document(data, SOURCE)


@pytest.mark.parametrize("deep", [b"[" * 1_000_000, b'{"schema_version":1,"x":' + b"[" * 1_000_000, b'{"a":' * 200_000])
def test_deeply_nested_json_is_refused(deep: bytes) -> None:
    with pytest.raises(FileFormatError, match=SOURCE):
        decode_document(deep, SOURCE)


def test_caller_of_the_root_call_is_refused(cases: dict[str, Case]) -> None:
    # A call without a caller that calls the root: who attaches such calls to the root would get a cycle.
    content = written(cases["outer"])
    root, other = content["calls"][:2]
    root["parent"] = other["id"]
    del other["parent"]
    with pytest.raises(FileFormatError, match="the call of the root module has a caller"):
        decode_document(json.dumps(content).encode(), SOURCE)


def test_check_without_a_measured_error_says_that_the_file_is_equal() -> None:
    assert str(FileCheck(CheckOutcome.EQUAL)) == "runs in onnxruntime and equals PyTorch"
    assert str(FileCheck(CheckOutcome.EQUAL, "", "y", 2e-7)).endswith("PyTorch (largest error 2e-07, in y)")


def test_unknown_fields_are_read_over_so_that_a_later_minor_form_can_be_read(cases: dict[str, Case]) -> None:
    content = written(cases["outer"]) | {"comment": "added by hand"}
    assert decode_document(json.dumps(content).encode(), SOURCE) == cases["outer"].document


# --- module information (R9) -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_module_information_has_class_and_children_of_every_module(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    assert [module.path for module in case.document.modules] == [path for path, _ in case.model.named_modules()]
    for path, module in case.model.named_modules():
        told = information(case, path)
        assert told["path"] == path
        assert told["class_name"] == type(module).__name__
        assert told["qualified_class"] == f"{type(module).__module__}.{type(module).__qualname__}"
        assert told.get("children", {}) == {child: type(m).__name__ for child, m in module._modules.items() if m}


@pytest.mark.parametrize("name", CASES)
def test_module_information_has_the_arguments_of_forward(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    for path, module in case.model.named_modules():
        told = information(case, path).get("forward_arguments", [])
        expected = [(p.name, p.kind.name.lower()) for p in inspect.signature(module.forward).parameters.values()]
        assert [(argument["name"], argument["kind"]) for argument in told] == expected


def test_module_information_has_which_arguments_are_required(cases: dict[str, Case]) -> None:
    (scale,) = (module for module in cases["outer"].document.modules if module.class_name == "Scale")
    assert [(a.name, a.kind, a.required) for a in scale.forward_arguments] == [
        ("x", "positional_only", True),
        ("y", "positional_or_keyword", True),
        ("flag", "positional_or_keyword", False),
        ("rest", "var_positional", False),
        ("z", "keyword_only", True),
        ("more", "var_keyword", False),
    ]


def test_module_information_separates_own_parameters_from_those_of_submodules(cases: dict[str, Case]) -> None:
    outer, scale = (information(cases["outer"], path) for path in ("", "steps.0"))
    assert outer["parameters"] == {"bias": {"shape": [4], "dtype": "float32"}}
    assert outer["inherited_parameters"] == {
        "steps.0.factor": {"shape": [3, 1], "dtype": "float32"},
        "steps.0.lin.weight": {"shape": [4, 4], "dtype": "float32"},
    }
    assert scale["parameters"] == {"factor": {"shape": [3, 1], "dtype": "float32"}}
    assert scale["inherited_parameters"] == {"lin.weight": {"shape": [4, 4], "dtype": "float32"}}
    assert scale["buffers"] == {"offset": {"shape": [4], "dtype": "float64"}}


def parameter_shapes(told: dict[str, Any]) -> dict[str, list[int]]:
    both = {**told.get("parameters", {}), **told["inherited_parameters"]}
    return {name: tensor["shape"] for name, tensor in both.items()}


@pytest.mark.parametrize(
    "name",
    [
        "outer",
        pytest.param(
            "aliased",
        ),
        "nested_outputs",
        "cnn",
    ],
)
def test_own_and_inherited_parameters_are_those_of_named_parameters(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    for path, module in case.model.named_modules():
        expected = {parameter: list(tensor.shape) for parameter, tensor in module.named_parameters()}
        assert parameter_shapes(information(case, path)) == expected, path


def test_module_information_has_calls_with_their_boundaries(cases: dict[str, Case]) -> None:
    case = cases["nested_outputs"]
    (call,) = information(case, "inner")["calls"]
    whole = {"shape": [4, 8], "dtype": "float32"}
    entering = {boundary["name"]: boundary for boundary in call["inputs"]}
    leaving = {boundary["name"]: boundary for boundary in call["outputs"]}
    assert (call["id"], call["parent"], call["tag"]) == ("inner", "", "/NestedOutputs/Inner")
    assert list(entering) == ["pair.0", "pair.1", "scale"]
    assert list(leaving) == ["logits", "states.0", "states.1", "extra.squared", "extra.unused"]
    assert all(boundary["info"] == whole for boundary in (*entering.values(), *leaving.values()))
    # The tensors are those of the graph; a result that nobody uses is in none.
    produced = {node.id for node in case.document.nodes if node.module.startswith("inner")}
    assert {leaving[name]["tensor"] for name in ("logits", "states.0", "states.1", "extra.squared")} <= produced
    assert "tensor" not in leaving["extra.unused"]


def test_module_information_has_boundaries_of_arguments_by_position_and_keyword(cases: dict[str, Case]) -> None:
    (call,) = information(cases["outer"], "steps.0")["calls"]
    assert [boundary["name"] for boundary in call["inputs"]] == ["x", "y", "z"]
    assert [boundary["name"] for boundary in call["outputs"]] == ["product", "sum"]
    assert call["parent"] == ""


def test_module_information_has_aliases_and_repeated_calls(cases: dict[str, Case]) -> None:
    first = information(cases["aliased"], "first")
    assert first["aliases"] == ["second", "list.0"]
    assert [call["id"] for call in first["calls"]] == ["first", "first@1", "first@2"]
    assert [call["tag"] for call in first["calls"]] == [f"/Aliased/Block.first{index}" for index in ("", "@1", "@2")]
    assert len({call["inputs"][0]["tensor"] for call in first["calls"]}) == 3
    assert information(cases["aliased"], "list")["calls"] == []
    assert cases["aliased"].document.tree().canonical("list.0.lin") == "first.lin"


def test_module_information_of_a_module_that_is_not_there_is_an_error_of_ours(cases: dict[str, Case]) -> None:
    with pytest.raises(ModelExportError, match=r"no\.such\.module"):
        cases["outer"].document.module_information("no.such.module")


# --- what a document adds up to --------------------------------------------------------------------------------


def test_coverage_is_the_part_of_the_nodes_whose_owner_is_a_call(cases: dict[str, Case]) -> None:
    document = cases["outer"].document
    assert document.coverage == 1.0
    lost = msgspec.structs.replace(document.nodes[0], module="nobody")
    less = msgspec.structs.replace(document, nodes=(lost, *document.nodes[1:]))
    assert less.coverage == pytest.approx(1 - 1 / len(document.nodes))
    assert msgspec.structs.replace(document, nodes=()).coverage == 1.0


def test_kinds_count_every_node(cases: dict[str, Case]) -> None:
    kinds = cases["cnn"].document.kinds
    assert kinds["fused"] == 2
    assert sum(kinds.values()) == len(cases["cnn"].document.nodes)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shape", [10**300]),
        ("shape", [2**62] * 300),
        ("shape", [2**62, 4]),
        ("shape", [-1]),
        ("confidence", 1e308),
        ("confidence", -0.5),
    ],
)
def test_number_that_no_export_writes_is_refused(field: str, value: object) -> None:
    node = NodeRecord("n", "Relu", "", "/M", "exact", 1.0, "")
    root = ModuleRecord("", "M", "m.M", parameters={"w": TensorInfo((2, 3), "float32")}, tag="/M", visible=True)
    empty = HierarchyDocument(1, Producer(), "fx", "x", "0", TagView(), (root,), (CallRecord("", "", 0, "/M"),), (), ())
    content = msgspec.to_builtins(msgspec.structs.replace(empty, nodes=(node,)))
    decode_document(json.dumps(content).encode(), SOURCE)
    if field == "shape":
        content["modules"][0]["parameters"]["w"]["shape"] = value
    else:
        content["nodes"][0]["confidence"] = value
    with pytest.raises(FileFormatError, match="not a valid hierarchy document"):
        decode_document(json.dumps(content).encode(), SOURCE)
