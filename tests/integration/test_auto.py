"""`auto`: what one exporter cannot take, another exports; every attempt is told."""

from __future__ import annotations

import copy
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from tests.conftest import Exported, Exporter, claims
from tests.support import nine, zoo
from tests.support.plain import export_plainly, fresh_generated_code
from tests.support.value_check import judge
from torch import nn

import modelexport
from modelexport.strategies.base import CaptureRequest, Strategy
from modelexport.strategies.registry import StrategyRegistry

pytestmark = pytest.mark.integration
each_model = pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in nine.NAMES])


@pytest.fixture(scope="session")
def automatic(tmp_path_factory: pytest.TempPathFactory) -> Exporter:
    """The nine models exported with ``strategy="auto"``, made when first asked for."""

    @cache
    def export(name: str, *, dynamic: bool = False) -> Exported:
        example = nine.build(name)
        path = tmp_path_factory.mktemp(f"auto_{name}") / f"{name}.onnx"
        options: dict[str, Any] = {}
        if dynamic:
            options["dynamic_shapes"] = {given: {0: torch.export.Dim.AUTO} for given in example.inputs}
        fresh_generated_code()
        return Exported(example, modelexport.export_model(example.model, example.inputs, path, **options), options)

    return export


@each_model
def test_onnxruntime_reproduces_pytorch(automatic: Exporter, name: str) -> None:
    ours = automatic(name)
    with torch.no_grad():
        result = ours.example.model(**copy.deepcopy(ours.example.inputs))
    expected = torch.utils._pytree.tree_leaves(result)
    session = onnxruntime.InferenceSession(ours.path, providers=["CPUExecutionProvider"])
    found = session.run(None, ours.feeds)
    expected = [tensor for tensor in expected if isinstance(tensor, torch.Tensor)]
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("dynamic", "name"),
    [
        pytest.param(
            dynamic, name, id=f"{'dynamic' if dynamic else 'static'}-{name}", marks=pytest.mark.xdist_group(name)
        )
        for dynamic, names in ((False, nine.NAMES), (True, ("gpt2", "mamba", "clip")))
        for name in names
    ],
)
def test_no_node_is_owned_by_a_module_that_did_not_compute_it(automatic: Exporter, name: str, dynamic: bool) -> None:
    ours = automatic(name, dynamic=dynamic)
    assert ours.result.coverage == 1.0
    # The check that the original graph was seen raises no false alarm: owners would not be exact.
    assert not [note for note in ours.result.notes if "was not seen" in note]
    verdict = judge(ours.path, claims(ours), ours.example.model, (), ours.example.inputs, ours.feeds)
    assert verdict.contaminated == ()
    assert verdict.judged >= 20


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in ("gpt2", "t5", "swin", "mixtral")]
)
def test_file_equals_that_of_transformers_exporter_when_stripped(
    automatic: Exporter, tmp_path: Path, name: str
) -> None:
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    ours = automatic(name)
    result = ours.result
    if name == "mixtral":
        # torch cannot export the operators of its experts.
        tried = [(a.exporter, a.error is None) for a in result.attempts]
        assert tried == [("dynamo", False), ("transformers", True)]
        assert "dynamo exporter failed with" in (result.attempts[0].error or "")
    fresh_generated_code()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name != "mixtral":
            # The others are exported by dynamo: once torch knows the class of the cache, and without gradients.
            result = modelexport.export_model(
                ours.example.model, ours.example.inputs, tmp_path / "ours.onnx", exporter="transformers"
            )
            fresh_generated_code()
        program = OnnxExporter().export(ours.example.model, copy.deepcopy(ours.example.inputs), OnnxConfig())
    program.save(tmp_path / "plain.onnx", external_data=False)
    stripped = modelexport.strip_hierarchy(onnx.load(result.onnx_path))
    plain = onnx.load(tmp_path / "plain.onnx")
    assert stripped.SerializeToString(deterministic=True) == plain.SerializeToString(deterministic=True)


@pytest.mark.xdist_group("gpt2")
def test_plain_torch_takes_a_model_that_returns_a_cache_once_it_knows_the_cache(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2Model

    model = GPT2Model(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2)).eval()
    inputs = {"input_ids": torch.arange(5)[None]}
    path = tmp_path / "ours.onnx"
    fresh_generated_code()
    result = modelexport.export_model(model, inputs, path, strategy="fx", exporter="dynamo-with-caches")
    assert result.document.exporter == "dynamo-with-caches"
    assert result.coverage == 1.0
    # Torch knows the caches from now on: what it exports by itself is the same file.
    plain = export_plainly(model, (), inputs, tmp_path / "plain.onnx")
    stripped = modelexport.strip_hierarchy(onnx.load(path))
    assert stripped.SerializeToString(deterministic=True) == plain.SerializeToString(deterministic=True)


@pytest.mark.xdist_group("gpt2")
def test_a_preparation_of_inputs_that_fails_does_not_stop_transformers_exporter(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2Model
    from transformers.exporters import utils

    class Indexed(GPT2Model):
        """The exporter asks such a model for its positions, which it knows for other inputs alone."""

        def get_rope_index(self, input_ids: torch.Tensor, kinds: torch.Tensor) -> tuple[torch.Tensor, None]:
            raise AssertionError("not called: there are no kinds")

    model = Indexed(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2)).eval()
    inputs = {"input_ids": torch.arange(5)[None]}
    prepare = utils.precompute_export_inputs
    result = modelexport.export_model(model, inputs, tmp_path / "m.onnx", strategy="fx", exporter="transformers")
    assert result.coverage == 1.0
    assert utils.precompute_export_inputs is prepare
    found = onnxruntime.InferenceSession(result.onnx_path).run(None, {"input_ids": inputs["input_ids"].numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(found[0], model(**inputs).last_hidden_state.numpy(), rtol=1e-3, atol=1e-5)


def test_plain_torch_with_caches_is_tried_behind_transformers_exporter_and_before_torchscript() -> None:
    candidates = modelexport.StrategySelector().recommend(nine.build("gpt2").model)
    tried = [(candidate.strategy.name, candidate.exporter) for candidate in candidates]
    assert tried[:4] == [
        ("fx", "dynamo"),
        ("fx", "transformers"),
        ("fx", "dynamo-with-caches"),
        ("htp", "torchscript"),
    ]


class Distances(nn.Module):
    """torch's dynamo exporter has no translation for the operator; the TorchScript exporter has one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x, x)


def test_torchscript_takes_what_dynamo_cannot(tmp_path: Path) -> None:
    result = modelexport.export_model(Distances(), torch.ones(2, 4), tmp_path / "m.onnx")
    assert [(a.strategy, a.exporter, a.error is None) for a in result.attempts] == [
        ("fx", "dynamo", False),
        ("htp", "torchscript", True),
    ]
    assert result["attempts"][0]["error"]
    assert result.strategy == "htp"


class Refusing(Strategy):
    """A strategy that serves nobody."""

    name = "refusing"

    def exporters(self, model: nn.Module) -> tuple[str, ...]:
        return ("none",)

    def capture(self, request: CaptureRequest) -> modelexport.ExportResult:  # type: ignore[override]
        raise modelexport.StrategyIncompatibleError(self.name, "it never works.", "Use another.")


def test_error_names_every_attempt_when_all_fail(tmp_path: Path) -> None:
    registry = StrategyRegistry((Refusing(), _named("other")))
    with pytest.raises(modelexport.AllStrategiesFailedError) as caught:
        modelexport.export_model(nn.Linear(4, 4), torch.ones(2, 4), tmp_path / "m.onnx", registry=registry)
    assert [name for name, _ in caught.value.failures] == ["refusing (none)", "other (none)"]
    assert str(caught.value).endswith("(2 attempts): refusing (none), other (none): it never works")
    assert list(tmp_path.iterdir()) == []


def _named(name: str) -> Strategy:
    return type("Other", (Refusing,), {"name": name})()


def test_unknown_exporter_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(modelexport.InputError, match="choose one of dynamo"):
        modelexport.export_model(
            nn.Linear(4, 4), torch.ones(2, 4), tmp_path / "m.onnx", strategy="fx", exporter="tensorrt"
        )


def test_inputs_that_do_not_fit_end_the_search_at_once(tmp_path: Path) -> None:
    with pytest.raises(modelexport.InputError, match="fails on the example inputs"):
        modelexport.export_model(nn.Linear(4, 4), torch.ones(2, 5), tmp_path / "m.onnx")


def test_recommendation_has_a_reason_for_each_candidate() -> None:
    found = modelexport.StrategySelector().recommend(zoo.build("bert").model)
    assert len(found) > 1
    assert all(candidate.reason for candidate in found)


def test_compiled_torchscript_goes_to_its_own_exporter_first(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4))
    result = modelexport.export_model(scripted, torch.ones(2, 4), tmp_path / "m.onnx")
    assert [(a.exporter, a.error) for a in result.attempts] == [("torchscript", None)]
    # Compiled code keeps the names of its modules but runs none of our hooks: nothing is claimed as recorded.
    assert {node.kind for node in result.document.nodes} == {"inferred"}


def test_characteristics_tell_what_a_model_is_like() -> None:
    from modelexport.strategies.characteristics import characterize

    bert, cond = characterize(zoo.build("bert").model), characterize(zoo.build("cond").model, dynamic_shapes=True)
    assert bert.is_huggingface
    assert not cond.is_huggingface
    assert not bert.has_control_flow
    assert cond.has_control_flow
    assert cond.has_dynamic_shapes
    assert cond.module_count == 6
    assert cond.depth == 3
    assert bert.model_type == "BertModel"
    assert set(bert.framework_hints) == {"torch", "transformers"}
    assert bert.parameter_count == sum(p.numel() for p in zoo.build("bert").model.parameters())
