"""Uses of the private parts of torch and transformers, each with what came out of it."""

from __future__ import annotations

import collections
import dataclasses
import functools
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
from torch import nn

import modelexport
from modelexport.capture.by_value.eager_recording import run_eagerly
from modelexport.capture.diagnosis import failures_explained
from modelexport.capture.fx.constant_values import ConstantValues
from modelexport.capture.fx.stage_decomposition import decompose
from modelexport.capture.module_tree import read_module_tree
from modelexport.errors import StrategyIncompatibleError
from modelexport.sources.loaders.pt2 import text_rules
from modelexport.sources.loaders.pt2.program_loader import load_exported_program
from modelexport.sources.loaders.sourced_model import LoadOptions
from modelexport.sources.loaders.transformers_model import load_folder
from modelexport.strategies.htp import HtpStrategy
from modelexport.strategies.registry import StrategyRegistry
from modelexport.torch_support import control_flow_depth, preserved_state, tensors_in
from modelexport.torch_support.private import map_leaves_with_keys
from modelexport.torch_support.private_export import name_dynamic_axes
from modelexport.torch_support.private_fx import translated_text
from modelexport.verification.onnx_run import _prepared
from tests.support.programs import save_program
from tests.support.tiny_models import make_bert, save_bert
from tests.support.torchscript_gaps import Differences


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came out of a use: the owner and kind of each node, the boundaries of calls, and the notes."""

    owners: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    boundaries: Any = None
    notes: tuple[str, ...] = ()


class Child(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


class Tiny(nn.Module):
    """Has what is hard to attribute: fusion, a block without gradients, two calls, equal nodes and a user's hook."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 1)
        self.norm = nn.BatchNorm1d(2)
        self.child, self.twin = Child(), Child()
        self.again = nn.Linear(3, 3)
        self.again.register_forward_hook(lambda module, args, result: result.neg())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x))
        with torch.no_grad():
            z = self.child(x) + self.twin(x)
        return self.again(self.again(y + z))


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda v: self.left(v), lambda v: self.right(v), (x,))


def exported(model: nn.Module, inputs: Any, folder: Path, **options: Any) -> Outcome:
    result = modelexport.export_model(model, inputs, folder / "model.onnx", overwrite=True, **options)
    document = result.document
    boundaries = {call.id: (call.inputs, call.outputs) for call in document.calls}
    return Outcome({n.id: (n.module, n.kind) for n in document.nodes}, boundaries, result.notes)


@functools.cache
def tiny() -> nn.Module:
    torch.manual_seed(0)
    return Tiny().eval()


@functools.cache
def branches() -> nn.Module:
    return Branches()


@functools.cache
def differences() -> nn.Module:
    return Differences()


X = torch.linspace(-1, 1, 6).reshape(1, 2, 3)
TOKENS = {"input_ids": torch.tensor([[1, 2, 3]])}


@functools.cache
def bert() -> Any:
    return make_bert()


@functools.cache
def gpt2() -> Any:
    import transformers

    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16)).eval()


def use_htp(folder: Path) -> Outcome:
    return exported(tiny(), X, folder, strategy="htp")


def use_htp_with_dynamic_axes(folder: Path) -> Outcome:
    return exported(tiny(), X, folder, strategy="htp", dynamic={"x": {2: "length"}})


def use_htp_with_nested_inputs(folder: Path) -> Outcome:
    class Nested(nn.Module):
        def forward(self, pair: dict[str, list[torch.Tensor]]) -> torch.Tensor:
            return pair["one"][0] + pair["one"][1]

    return exported(Nested(), {"pair": {"one": [X, X]}}, folder, strategy="htp", dynamic={"pair.one.0": {0: "n"}})


def use_htp_as_a_function_of_tensors(folder: Path) -> Outcome:
    class Result:
        def __init__(self, value: torch.Tensor) -> None:
            self.value = value

    class Wrapping(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return Result(x.relu())

    return exported(Wrapping(), X, folder, strategy="htp")


def use_htp_without_an_operator(folder: Path) -> Outcome:
    return exported(differences(), torch.ones(3, 5), folder, strategy="htp")


def use_auto(folder: Path) -> Outcome:
    return exported(tiny(), X, folder, registry=StrategyRegistry((HtpStrategy(),)))


def use_by_value(folder: Path) -> Outcome:
    return exported(tiny(), X, folder, strategy="usage_based", exporter="torchscript")


def use_eager_control_flow(folder: Path) -> Outcome:
    model = branches()
    run = run_eagerly(model, read_module_tree(model), (torch.ones(1, 2),), {})
    return Outcome(boundaries=sorted(map(str, run.calls)))


def use_control_flow_depth(folder: Path) -> Outcome:
    with control_flow_depth():
        branches()(torch.ones(1, 2))
    return Outcome()


def use_diagnosis(folder: Path) -> Outcome:
    try:
        with failures_explained("fx", "dynamo", tiny()):
            raise RuntimeError("a failure")
    except StrategyIncompatibleError as error:
        if "a failure" not in str(error):
            raise
    return Outcome()


class ByBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("size", torch.tensor(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_ones(self.size.item())


def use_constant_values(folder: Path) -> Outcome:
    model = ByBuffer()
    return _trace(model, ConstantValues(model))


def _trace(model: nn.Module, values: ConstantValues) -> Outcome:
    # As in an export: torch before 2.13 leaves a global hook behind when a trace fails.
    with preserved_state(model), failures_explained("fx", "dynamo", model), values.known():
        program = torch.export.export(model, (X,), strict=False)
    return Outcome(boundaries=[str(node.target) for node in program.graph.nodes])


class ByInput(nn.Module):
    """Has a size that depends on values of its input, which torch traces without them, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.nonzero() + 1


def use_values_of_inputs(folder: Path) -> Outcome:
    model = ByInput()
    return _trace(model, ConstantValues(model, of_inputs=True))


def use_program(folder: Path) -> Outcome:
    # Another test of this process may have read the operators already.
    text_rules._size_operators.cache_clear()
    path = folder / "program.pt2"
    if not path.exists():
        size = torch.export.Dim("length", max=64)
        save_program(Sizes(), (torch.ones(4, 6), [torch.ones(1)]), path, dynamic_shapes=({0: size}, [None]))
    load_exported_program(path)
    return Outcome()


class Sizes(nn.Module):
    def forward(self, x: torch.Tensor, more: list[torch.Tensor]) -> torch.Tensor:
        return x.new_ones(x.shape[0] // 2 + 1) + more[0]


def use_folder(folder: Path) -> Outcome:
    if not (folder / "bert").exists():
        save_bert(folder / "bert")
    tasks = (None, "AutoModel")
    loaded = [load_folder("bert", folder / "bert", LoadOptions(random_weights=True, task=task)) for task in tasks]
    return Outcome(boundaries=[type(found.model).__name__ for found in loaded])


def use_stages(folder: Path) -> Outcome:
    return Outcome(boundaries=[(s.name, s.path, list(s.inputs)) for s in decompose(gpt2(), TOKENS)])


def use_prepared_inputs(folder: Path) -> Outcome:
    prepared, why = _prepared(bert(), dict(TOKENS))
    return Outcome(boundaries=sorted(prepared), notes=(why,) if why else ())


def use_directly(folder: Path) -> Outcome:
    """What other uses need only for models that take long to export."""
    list(tensors_in(collections.deque([X]), ""))
    map_leaves_with_keys(lambda way, leaf: way, {"a": [1]})
    translated_text(ir.Node("", "Relu", [], metadata_props={"pkg.torch.onnx.fx_node": "%relu"}))
    graph = ir.Model(ir.Graph([], [], nodes=[]), ir_version=10)
    name_dynamic_axes(torch.onnx.ONNXProgram(graph, None), ())
    return Outcome()


def use_caches(folder: Path) -> Outcome:
    return exported(bert(), TOKENS, folder, strategy="fx", exporter="dynamo-with-caches")


def use_transformers(folder: Path) -> Outcome:
    try:
        return exported(bert(), TOKENS, folder, strategy="fx", exporter="transformers")
    except modelexport.StrategyIncompatibleError as error:
        if isinstance(error.__cause__, ImportError):
            pytest.skip(f"transformers' exporter refuses this torch: {error.__cause__}")
        raise


def use_fx(folder: Path) -> Outcome:
    return exported(tiny(), X, folder, strategy="fx")


# An export with `htp` takes a twentieth of a second, one with `fx` a second.
EXPORTS = (
    use_htp,
    use_htp_with_dynamic_axes,
    use_htp_with_nested_inputs,
    use_htp_as_a_function_of_tensors,
    use_htp_without_an_operator,
    use_auto,
)
OTHERS = (
    use_eager_control_flow,
    use_control_flow_depth,
    use_diagnosis,
    use_constant_values,
    use_values_of_inputs,
    use_program,
    use_folder,
    use_stages,
    use_prepared_inputs,
    use_directly,
)
SLOW = (use_fx, use_transformers, use_caches)
