"""MUST-001: no operator, class, architecture or attribute name decides anything about attribution or tags."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import onnx.defs
import pytest
import torch
from tests.support import zoo
from torch import nn

import modelexport
from modelexport.exporting.export import export_model

pytestmark = pytest.mark.must

ROOT = Path(modelexport.__file__).parent
GUARDED = (
    *sorted(ROOT.glob("capture/**/*.py")),
    *sorted(ROOT.glob("strategies/**/*.py")),
    *sorted(ROOT.glob("ownership/**/*.py")),
    *sorted(ROOT.glob("graph/**/*.py")),
    *sorted(ROOT.glob("hierarchy/**/*.py")),
)

# Whatever creates example inputs.
INPUT_MODULES = (*sorted(ROOT.glob("sources/*_inputs*.py")), *sorted(ROOT.glob("sources/inputs/**/*.py")))

# The one list of class names there is: the default of what callers may change (MUST-002).
THE_DEFAULT_VIEW = "DEFAULT_TORCH_NN_EXCEPTIONS"
# Words that are also the name of something, with why they may be written.
ALLOWED = {
    "output": "a kind of FX node, and what a result that is one tensor is called",
}


# --- the names -------------------------------------------------------------------------------------------------


@cache
def operators() -> frozenset[str]:
    return frozenset(schema.name for schema in onnx.defs.get_all_schemas())


@cache
def torch_nn_classes() -> frozenset[str]:
    classes = (cls for cls in vars(nn).values() if isinstance(cls, type) and issubclass(cls, nn.Module))
    return frozenset(cls.__name__ for cls in classes) - {"Module"}


@cache
def architectures() -> frozenset[str]:
    """The model types and model classes of transformers, where it is installed."""
    try:
        from transformers.models.auto import configuration_auto, modeling_auto
    except ImportError:
        return frozenset()
    names = set(configuration_auto.CONFIG_MAPPING_NAMES)
    for table, entries in vars(modeling_auto).items():
        if table.endswith("_MAPPING_NAMES"):
            for classes in entries.values():
                names.update([classes] if isinstance(classes, str) else classes)
    return frozenset(name for name in names if name)


@cache
def attributes() -> frozenset[str]:
    """What the modules of the test models call their children."""
    paths = [path for name in zoo.names() for path, _ in zoo.build(name).model.named_modules()]
    return frozenset(part for path in paths for part in path.split(".") if part and not part.isdigit())


def test_there_are_names_to_look_for() -> None:
    assert {"Conv", "MatMul", "LayerNormalization", "If"} <= operators()
    assert {"Linear", "LSTM", "LayerNorm", "ModuleList"} <= torch_nn_classes()
    assert {"encoder", "attention", "blk"} <= attributes()
    pytest.importorskip("transformers")
    assert {"bert", "gpt2", "BertModel", "GPT2LMHeadModel"} <= architectures()


# --- finding them in source ------------------------------------------------------------------------------------


def findings(source: str) -> list[str]:
    """Every name that a file writes down, in a string or as a class or operator that it uses."""
    tree = ast.parse(source)
    skipped = {id(node) for node in _prose_and_defaults(tree)}
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += [f"{node.lineno}: {node.value!r} is {what}" for what in _named_by(node.value)]
        elif isinstance(node, ast.Attribute | ast.Name):
            dotted = ast.unparse(node)
            if dotted == "torch.ops" or _is_torch_nn_class(dotted):
                found.append(f"{node.lineno}: uses {dotted}")
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [f"{node.lineno}: imports {name}" for name in names if _is_torch_nn_class(name)]
            found += [f"{node.lineno}: imports {name}" for name in names if name.rpartition(".")[2] in architectures()]
    return found


def _prose_and_defaults(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value  # a docstring
        elif isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [THE_DEFAULT_VIEW]:
            yield from ast.walk(node.value)


def _named_by(text: str) -> Iterator[str]:
    """What a string names. In sentences words mean what they mean in English; anything else is taken apart."""
    words = {text}
    if not re.search(r"\s", text):
        words.update(re.split(r"[^A-Za-z0-9_-]+", text))
        words.update(re.split(r"[^A-Za-z0-9]+", text))
    kinds = {"an operator": operators(), "a torch.nn class": torch_nn_classes(), "an architecture": architectures()}
    for kind, names in kinds.items():
        if words & names:
            yield kind
    # The parts of a path, but not of other strings: `nn_module_stack` names no module.
    if (set(text.split(".")) & attributes()) - ALLOWED.keys():
        yield "an attribute of modules"


def _is_torch_nn_class(dotted: str) -> bool:
    package, _, name = dotted.rpartition(".")
    return name in torch_nn_classes() and (package == "nn" or package.startswith("torch.nn"))


HARDCODED = (
    'if node.op_type == "Conv": pass',
    'if "Conv" != node.op_type: pass',
    'found = node.op_type in {"MatMul", "Gemm"}',
    'KNOWN = frozenset(["Relu"])',
    'match node.op_type:\n    case "Add" | "Mul": pass',
    'RULES = {"Softmax": 1}',
    'rule = rules["Softmax"]',
    'if node.name.startswith("Conv_"): pass',
    'PATTERN = re.compile("^(MatMul|Gemm)_[0-9]+$")',
    'found = key == "ai.onnx::LayerNormalization"',
    'if isinstance(module, torch.nn.Linear): pass',
    'if isinstance(module, nn.Conv2d): pass',
    'if isinstance(module, torch.nn.modules.rnn.LSTM): pass',
    "from torch.nn import LSTM",
    'if info.class_name == "Linear": pass',
    'if info.qualified_class == "torch.nn.modules.linear.Linear": pass',
    'if model.config.model_type == "bert": pass',
    'if type(model).__name__ in ("BertModel", "GPT2Model"): pass',
    "from transformers import BertModel",
    'if path.endswith(".attention"): pass',
    'layers = getattr(model, "encoder")',
    'found = path == "encoder.layer.0"',
    "found = node.target is torch.ops.aten.add.Tensor",
)  # fmt: skip
HARMLESS = (
    '"""Conv and BatchNormalization are fused, as in bert."""',
    'def f():\n    """Conv"""',
    'raise ValueError(f"the Conv {name} has no owner: And what now?")',
    'if node.op in ("placeholder", "call_function", "get_attr", "output"): pass',
    "if isinstance(module, torch.nn.Module): pass",
    "parameter: torch.nn.Parameter = nn.Parameter(x)",
    f'{THE_DEFAULT_VIEW} = ("LayerNorm", "Embedding")',
    'stack = node.meta.get("nn_module_stack")',
)


@pytest.mark.parametrize("source", HARDCODED)
def test_hardcoded_name_is_found(source: str) -> None:
    if "bert" in source.lower():
        pytest.importorskip("transformers")
    assert findings(source)


@pytest.mark.parametrize("source", HARMLESS)
def test_harmless_source_is_let_through(source: str) -> None:
    assert findings(source) == []


# --- the rule --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", GUARDED, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_name_is_written_down_where_owners_tags_and_strategies_are_decided(file: Path) -> None:
    assert findings(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("file", INPUT_MODULES, ids=lambda file: file.name)
def test_inputs_are_synthesized_without_the_name_of_an_architecture(file: Path) -> None:
    """Words for what an argument holds are what libraries agree on; which model it is must not matter."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    prose = {id(node) for node in _prose_and_defaults(tree)}
    strings = {
        n.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in prose
    }
    assert {text for text in strings if not re.search(r"\s", text)} & architectures() == set()


def test_what_is_allowed_is_needed() -> None:
    """An entry that no file needs any more would only hide the next mistake."""
    constants = {
        node.value
        for file in GUARDED
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
    }
    assert set(ALLOWED) <= constants
    assert set(ALLOWED) <= attributes() | operators() | torch_nn_classes() | architectures()


# --- and what it is for ----------------------------------------------------------------------------------------

Names = tuple[str, ...]


def build_net(classes: Names, children: Names) -> nn.Module:
    """The same model under any names: blocks with a residual, one of them called twice, and a scale at the root."""
    net, block = classes
    norm, first, again = children

    def run_block(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.get_submodule(norm)(x)) + x

    def run_net(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = self.get_submodule(again)(self.get_submodule(first)(x)) * 2
        return self.get_submodule(again)(x)

    block_class = type(block, (nn.Module,), {"forward": run_block})
    model = type(net, (nn.Module,), {"forward": run_net})()
    for name in (first, again):
        model.add_module(name, block_class())
        model.get_submodule(name).add_module(norm, nn.LayerNorm(4))
    return model


@pytest.mark.parametrize(
    ("classes", "children"),
    [
        (("BertModel", "Linear"), ("attention", "encoder", "layer")),
        (("Conv", "Add"), ("MatMul", "Relu_1", "node_Add_2")),
    ],
    ids=["names of models", "names of operators"],
)
def test_attribution_is_the_same_whatever_modules_are_called(classes: Names, children: Names, tmp_path: Path) -> None:
    plain = ("norm", "first", "again")
    written = []
    for names, given in ((("Net", "Block"), plain), (classes, children)):
        nodes = export_model(
            build_net(names, given), torch.ones(2, 4), tmp_path / "model.onnx", overwrite=True
        ).document.nodes
        owners = [[_renamed(call, given, plain) for call in (node.module, *node.contributors)] for node in nodes]
        written.append([(n.op, n.kind, n.confidence, calls) for n, calls in zip(nodes, owners, strict=True)])
    assert written[0] == written[1]
    assert {calls[0] for *_, calls in written[0]} >= {"", "first", "first.norm", "again@1", "again.norm@1"}


def _renamed(call: str, names: Names, others: Names) -> str:
    new = dict(zip(names, others, strict=True))
    return re.sub(r"[^.@]+", lambda part: new.get(part[0], part[0]), call)
