"""The htp strategy: byte for byte what the TorchScript exporter writes, with the owners that fx finds."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from tests.conftest import Exported, Exporter, claims
from tests.support import zoo
from tests.support.value_check import computed_by, judge, run_eagerly, run_onnx, same_values, says_something
from torch import nn

import modelexport

pytestmark = pytest.mark.integration

# Their masks use an operator that the TorchScript exporter has no symbolic for; `cond` is the dynamo exporter's.
_OUT_OF_REACH = {"gpt2", "whisper", "cond"}
# Called by keyword or returning dataclasses, they need the function-of-tensors form, which plain torch has not.
_NOT_PLAINLY = {"bert", "nested_outputs"}
_MODELS = [name for name in zoo.names() if name not in _OUT_OF_REACH]
each_model = pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in _MODELS])


@pytest.fixture(scope="session")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    """Models exported by htp, made when first asked for."""

    @cache
    def export(name: str) -> Exported:
        example = zoo.build(name)
        path = tmp_path_factory.mktemp(f"htp_{name}") / f"{name}.onnx"
        result = modelexport.export_model(example.model, example.inputs, path, strategy="htp")
        return Exported(example, result, {})

    return export


def _export_plainly(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any) -> onnx.ModelProto:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, args, file, kwargs=kwargs or None, dynamo=False, **options)
    return onnx.load_model_from_string(file.getvalue())


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in _MODELS if n not in _NOT_PLAINLY]
)
def test_file_equals_plain_torchscript_export_when_stripped(traced: Callable[[str], Exported], name: str) -> None:
    ours = traced(name)
    plain = _export_plainly(ours.example.model, ours.args, ours.kwargs)
    stripped = modelexport.strip_hierarchy(onnx.load(ours.path))
    assert stripped.SerializeToString(deterministic=True) == plain.SerializeToString(deterministic=True)


@pytest.mark.xdist_group("cnn")
def test_options_reach_the_exporter(tmp_path: Path) -> None:
    example = zoo.build("cnn")
    options: dict[str, Any] = {
        "input_names": ["image"],
        "output_names": ["scores"],
        "opset_version": 17,
        "dynamic_axes": {"image": {0: "batch"}, "scores": {0: "batch"}},
    }
    path = tmp_path / "cnn.onnx"
    modelexport.export_model(example.model, example.inputs, path, strategy="htp", **options)
    plain = _export_plainly(example.model, (example.inputs,), {}, **options)
    stripped = modelexport.strip_hierarchy(onnx.load(path))
    assert stripped.SerializeToString(deterministic=True) == plain.SerializeToString(deterministic=True)
    assert stripped.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


@each_model
def test_checker_accepts_the_file_and_every_node_has_an_owner(traced: Callable[[str], Exported], name: str) -> None:
    ours = traced(name)
    onnx.checker.check_model(ours.path, full_check=True)
    assert ours.result.coverage == 1.0
    assert ours.document.exporter == "torchscript"


@each_model
def test_no_node_is_owned_by_a_module_that_did_not_compute_it(traced: Callable[[str], Exported], name: str) -> None:
    ours = traced(name)
    verdict = judge(ours.path, claims(ours), ours.example.model, ours.args, ours.kwargs, ours.feeds)
    assert verdict.contaminated == ()
    assert verdict.judged >= 3


@each_model
def test_calls_are_those_of_fx(exported: Exporter, traced: Callable[[str], Exported], name: str) -> None:
    assert [c.id for c in traced(name).document.calls] == [c.id for c in exported(name).document.calls]
    assert [c.tag for c in traced(name).document.calls] == [c.tag for c in exported(name).document.calls]


@each_model
def test_tensors_of_one_module_have_the_same_owner_as_with_fx(
    exported: Exporter, traced: Callable[[str], Exported], name: str
) -> None:
    one, other = exported(name), traced(name)
    eager = run_eagerly(one.example.model, one.args, one.kwargs)
    first = {n: v for n, v in run_onnx(one.path, one.feeds).items() if says_something(v)}
    second = {n: v for n, v in run_onnx(other.path, other.feeds).items() if says_something(v)}
    owners = [{t: owner for t, (owner, *_) in claims(side).items()} for side in (one, other)]
    compared = 0
    for tensor, value in first.items():
        if len(computed_by(value, eager)) != 1:
            continue
        for twin, twin_value in second.items():
            if twin_value.shape == value.shape and same_values(value, twin_value):
                assert owners[0][tensor] == owners[1][twin], (tensor, twin)
                compared += 1
    assert compared >= 2


@each_model
def test_boundary_tensors_are_the_inputs_and_outputs_of_the_module(
    traced: Callable[[str], Exported], name: str
) -> None:
    from tests.support.eager_calls import record_calls

    ours = traced(name)
    eager = record_calls(ours.example.model, ours.args, ours.kwargs)
    tensors = {**run_onnx(ours.path, ours.feeds), **ours.feeds}
    checked = 0
    for call in ours.document.calls:
        for boundaries, seen in ((call.inputs, eager[call.id].inputs), (call.outputs, eager[call.id].outputs)):
            for boundary in boundaries:
                if boundary.tensor in tensors and boundary.name in seen:
                    found = tensors[boundary.tensor].astype(np.float32)
                    np.testing.assert_allclose(
                        found, seen[boundary.name], rtol=1e-3, atol=1e-4, err_msg=f"{call.id} {boundary}"
                    )
                    checked += 1
    assert checked >= 2


class Clashing(nn.Module):
    """The second call of `l` and the module `l_1` have the same scoped name in the file."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(4, 4)
        self.l_1 = nn.Linear(4, 4)
        self.f = nn.Sequential(nn.Conv1d(1, 2, 1), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.f(self.l_1(self.l(self.l(x)))[:, None])


def test_names_that_clash_in_the_file_do_not_mislead(tmp_path: Path) -> None:
    result = modelexport.export_model(Clashing().eval(), torch.randn(2, 4), tmp_path / "m.onnx", strategy="htp")
    owners = {node.id: node.module for node in result.document.nodes}
    assert owners["/l/Gemm_output_0"] == "l"
    assert owners["/l_1/Gemm_output_0"] == "l@1"
    assert owners["/l_1/Gemm_1_output_0"] == "l_1"
    assert owners["/f/f.0/Conv_output_0"] == "f.0"
    assert {node.module for node in result.document.nodes} == {"", "l", "l@1", "l_1", "f.0", "f.1"}


@pytest.mark.xdist_group("lstm")
def test_helpers_of_recurrent_layers_belong_to_them(traced: Callable[[str], Exported]) -> None:
    for name in ("lstm", "gru"):
        assert {node.module for node in traced(name).document.nodes} == {"rnn", "head"}


@pytest.mark.xdist_group("cnn")
def test_owner_is_both_modules_when_conv_and_batchnorm_are_fused(traced: Callable[[str], Exported]) -> None:
    fused = [node for node in traced("cnn").document.nodes if node.kind == "fused"]
    assert [(node.module, node.contributors) for node in fused] == [
        ("features.0.norm", ("features.0.conv",)),
        ("features.2.norm", ("features.2.conv",)),
    ]


def test_state_of_the_tracer_is_as_it_was(tmp_path: Path) -> None:
    model = zoo.build("shared_block").model
    passes = {name: getattr(torch._C, name) for name in dir(torch._C) if name.startswith("_jit_")}
    log = torch._C._jit_is_onnx_log_enabled()
    hooks = [dict(module._forward_hooks) for module in model.modules()]
    modelexport.export_model(model, torch.randn(4, 8), tmp_path / "m.onnx", strategy="htp")
    assert torch.jit._trace._trace_module_map is None
    assert torch._C._jit_is_onnx_log_enabled() == log
    assert {name: getattr(torch._C, name) for name in passes} == passes
    assert [dict(module._forward_hooks) for module in model.modules()] == hooks


def test_traced_graph_is_written_with_the_call_of_each_node(tmp_path: Path) -> None:
    dump = tmp_path / "graph.txt"
    modelexport.export_model(
        zoo.build("shared_block").model, torch.randn(4, 8), tmp_path / "m.onnx", strategy="htp", jit_graph_path=dump
    )
    lines = dump.read_text().splitlines()
    assert any(line.startswith("[blk.lin@2] ") and "onnx::Gemm" in line for line in lines)
    assert not any("modelexport-call" in line for line in lines)


def test_dump_of_a_graph_that_was_not_traced_is_refused(tmp_path: Path) -> None:
    with pytest.raises(modelexport.InputError, match="there is no fx graph"):
        modelexport.export_model(
            zoo.build("shared_block").model,
            torch.randn(4, 8),
            tmp_path / "m.onnx",
            strategy="htp",
            fx_graph_path=tmp_path / "graph.txt",
        )
    assert list(tmp_path.iterdir()) == []


def test_dynamic_shapes_are_refused_with_what_to_give_instead(tmp_path: Path) -> None:
    with pytest.raises(modelexport.StrategyIncompatibleError, match="dynamic_axes"):
        modelexport.export_model(
            zoo.build("cnn").model,
            torch.randn(2, 3, 16, 16),
            tmp_path / "m.onnx",
            strategy="htp",
            dynamic_shapes=({0: torch.export.Dim.AUTO},),
        )


class _Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.first.register_forward_pre_hook(lambda module, args: (args[0] * 1.7,))
        self.first.register_forward_hook(lambda module, args, result: torch.sin(result) * 3)
        self.register_forward_hook(lambda module, args, result: torch.exp(result))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) + 1) * 2


def test_file_with_hooks_is_that_of_plain_export_and_hooks_of_all_modules_count_for_each(tmp_path: Path) -> None:
    model, inputs = _Hooked().eval(), (torch.randn(2, 4),)
    path = tmp_path / "model.onnx"
    # The exporter has modules of its own, which return no tensor.
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, result: result.abs() if isinstance(result, torch.Tensor) else None
    )
    try:
        document = modelexport.export_model(model, inputs, path, strategy="htp").document
        plain = _export_plainly(model, inputs, {})
    finally:
        handle.remove()
    stripped = modelexport.strip_hierarchy(onnx.load(path))
    assert stripped.SerializeToString(deterministic=True) == plain.SerializeToString(deterministic=True)
    owners = [(node.op, node.module, node.kind) for node in document.nodes if node.op in ("Sin", "Exp", "Abs")]
    modules = ["first", "first", "second", "", ""]
    assert owners == [(op, m, "exact") for op, m in zip(["Abs", "Sin", "Abs", "Abs", "Exp"], modules, strict=True)]
