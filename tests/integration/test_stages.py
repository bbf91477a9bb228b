"""The stages of generating: each graph is transformers' own, every node has its owner, and all together generate.

All the models of `tests.support.generators` with ``MODELEXPORT_ALL_STAGES=1``; some of them otherwise.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
import torch
from tests.support import generators
from tests.support.command import Outcome
from tests.support.plain import fresh_generated_code
from tests.support.value_check import judge

import modelexport
from modelexport.capture.fx.stage_decomposition import Stage, decompose
from modelexport.exporting.generation_stages import _StageStrategy
from modelexport.exporting.result import export_schema
from modelexport.strategies import StrategyRegistry

transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("stages"),
    pytest.mark.filterwarnings("ignore"),
]

ALL = bool(os.environ.get("MODELEXPORT_ALL_STAGES"))
DECODERS = ["gpt2", "llama", "qwen3"]
GENERATING = ["gpt2", "t5", *(["llama", "qwen3", "bart", "whisper"] if ALL else [])]
PARTS = {
    "gpt2": {"prefill": "", "decode": ""},
    "llama": {"prefill": "", "decode": ""},
    "qwen3": {"prefill": "", "decode": ""},
    "t5": {"encoder": "encoder", "prefill": "", "decode": ""},
    "bart": {"encoder": "model.encoder", "prefill": "", "decode": ""},
    "whisper": {"encoder": "model.encoder", "prefill": "", "decode": ""},
    "llava": {
        "vision_tower": "model.vision_tower",
        "multi_modal_projector": "model.multi_modal_projector",
        "language_model": "model.language_model",
        "lm_head": "lm_head",
        "decode": "",
    },
}


@dataclasses.dataclass(frozen=True)
class Taken:
    """A model taken apart, and its stages as they were exported."""

    model: torch.nn.Module
    inputs: dict[str, Any]
    stages: dict[str, Stage]
    results: dict[str, modelexport.ExportResult]


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Taken]:
    @cache
    def take(name: str) -> Taken:
        model, inputs = generators.build(name)
        fresh_generated_code()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = modelexport.export_stages(model, inputs, tmp_path_factory.mktemp(name) / f"{name}.onnx")
            stages = {stage.name: stage for stage in decompose(model, inputs)}
        return Taken(model, inputs, stages, results)

    return take


def arrays(inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in inputs.items()}


@pytest.mark.parametrize("name", PARTS if ALL else GENERATING)
def test_stages_are_what_generate_runs_each_in_a_file_with_a_sidecar(taken: Callable[[str], Taken], name: str) -> None:
    ours = taken(name)
    assert {stage.name: stage.path for stage in ours.stages.values()} == PARTS[name]
    folder = next(iter(ours.results.values())).onnx_path.parent
    wanted = {f"{name}_{stage}{end}" for stage in PARTS[name] for end in (".onnx", "_hierarchy.json")}
    assert {path.name for path in folder.iterdir()} == wanted
    for stage, result in ours.results.items():
        onnx.checker.check_model(result.onnx_path)
        loaded = modelexport.load(result.onnx_path)
        assert loaded.document == result.document
        assert result.files == (folder / f"{name}_{stage}.onnx", folder / f"{name}_{stage}_hierarchy.json")
        # Paths are those of the module that runs: of the whole model where it does.
        paths = [path for path, _ in ours.stages[stage].module.named_modules()]
        assert [module.path for module in result.document.modules] == paths


@pytest.mark.parametrize("name", PARTS if ALL else GENERATING)
def test_every_node_of_a_stage_has_an_owner_that_ran_it(taken: Callable[[str], Taken], name: str) -> None:
    ours = taken(name)
    for stage, result in ours.results.items():
        assert result.coverage == 1.0
        graph = onnx.load(result.onnx_path).graph
        records = {node.id: node for node in result.document.nodes}
        claims = {}
        for node in graph.node:
            record = records[next(output for output in node.output if output)]
            claims |= dict.fromkeys(node.output, (record.module, *record.contributors))
        inputs = copy.deepcopy(ours.stages[stage].inputs)
        tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
        feeds = {value.name: tensor.numpy() for value, tensor in zip(graph.input, tensors, strict=True)}
        verdict = judge(result.onnx_path, claims, ours.stages[stage].module, (), inputs, feeds)
        assert verdict.contaminated == ()
        assert verdict.judged >= min(len(graph.node), 30)


@pytest.mark.parametrize("name", GENERATING)
def test_stages_in_onnxruntime_generate_what_pytorch_generates(taken: Callable[[str], Taken], name: str) -> None:
    ours = taken(name)
    stages = generators.Stages({stage: result.onnx_path for stage, result in ours.results.items()})
    start = ours.model.generation_config.decoder_start_token_id
    # Another batch than the one exported with: three rows, and a longer prompt where the length is free.
    longer = {key: torch.cat([tensor, tensor.flip(0)])[:3] for key, tensor in ours.inputs.items()}
    if "input_ids" in longer:
        longer = {key: torch.cat([tensor, tensor.flip(1)], dim=1) for key, tensor in longer.items()}
    for inputs in (ours.inputs, longer):
        tokens, logits = stages.greedy(arrays(inputs), start, count=5)
        expected_tokens, expected_logits = generators.greedy_in_pytorch(ours.model, inputs, count=5)
        np.testing.assert_allclose(logits, expected_logits, atol=2e-5)
        assert tokens.tolist() == expected_tokens.tolist()


@pytest.mark.parametrize("name", DECODERS)
def test_stages_of_an_example_without_padding_generate_from_padded_prompts_as_pytorch_does(
    taken: Callable[[str], Taken], name: str
) -> None:
    ours = taken(name)
    assert bool(ours.inputs["attention_mask"].all())
    stages = generators.Stages({stage: result.onnx_path for stage, result in ours.results.items()})
    lengths = torch.tensor([9, 4, 6])
    padded = {"attention_mask": (torch.arange(9) >= 9 - lengths[:, None]).long()}
    padded["input_ids"] = torch.randint(3, 90, (3, 9)) * padded["attention_mask"]
    tokens, logits = stages.greedy(arrays(padded), None, count=8)
    expected_tokens, expected_logits = generators.greedy_in_pytorch(ours.model, padded, count=8)
    assert tokens.tolist() == expected_tokens.tolist()
    np.testing.assert_allclose(logits, expected_logits, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.float32])
def test_mask_of_any_type_is_an_input_of_each_stage_and_keeps_the_values_of_the_example(dtype: torch.dtype) -> None:
    model, inputs = generators.build("gpt2")
    inputs["attention_mask"] = inputs["attention_mask"].to(dtype)
    for stage, length in zip(decompose(model, inputs), (7, 9), strict=True):
        torch.testing.assert_close(stage.inputs["attention_mask"], torch.ones(2, length, dtype=dtype))
        assert stage.other_inputs["attention_mask"].flatten().tolist() == [0] + [1] * (2 * length - 1)


class Forgetful(transformers.GPT2LMHeadModel):
    """Forgets the values of its mask when torch exports it."""

    def forward(self, attention_mask: torch.Tensor | None = None, **inputs: Any) -> Any:
        if attention_mask is not None and torch.compiler.is_exporting():
            attention_mask = torch.ones_like(attention_mask)
        return super().forward(attention_mask=attention_mask, **inputs)


def test_check_of_a_stage_also_masks_what_the_example_does_not_mask(tmp_path: Path) -> None:
    model, inputs = generators.build("gpt2")
    forgetful = Forgetful(model.config).eval()
    results = modelexport.export_stages(forgetful, inputs, tmp_path / "model.onnx", dynamic=False, check="run")
    for result in results.values():
        assert result.check.is_wrong
        assert "with other values:" in result.check.reason


@pytest.mark.parametrize(
    ("name", "stage"),
    [(name, stage) for name in PARTS for stage in PARTS[name]] if ALL else [("gpt2", "decode")],
)
def test_graph_of_a_stage_is_the_one_transformers_exporter_makes(
    taken: Callable[[str], Taken], name: str, stage: str, tmp_path: Path
) -> None:
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    ours = taken(name)
    fresh_generated_code()
    given = ours.stages[stage]
    config = OnnxConfig(dynamic=True, output_path=str(tmp_path / "plain.onnx"), external_data=False)
    OnnxExporter().export(given.module, copy.deepcopy(given.inputs), config)
    result = modelexport.export_model(
        given.module,
        given.inputs,
        tmp_path / "ours.onnx",
        registry=StrategyRegistry((_StageStrategy(dynamic=True, rename=None),)),
    )
    stripped = modelexport.strip_hierarchy(onnx.load(result.onnx_path))
    plain = onnx.load(tmp_path / "plain.onnx")
    assert stripped.SerializeToString() == plain.SerializeToString()
    # The names of the cache and of axes are the only difference to the stage as it is exported by default.
    named = onnx.load(ours.results[stage].onnx_path).graph
    assert [node.op_type for node in named.node] == [node.op_type for node in plain.graph.node]
    assert [weight.SerializeToString() for weight in named.initializer] == [
        weight.SerializeToString() for weight in plain.graph.initializer
    ]


def test_cache_and_axes_have_the_names_that_runtimes_expect(taken: Callable[[str], Taken]) -> None:
    graph = onnx.load(taken("gpt2").results["decode"].onnx_path).graph
    shapes = {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert {"past_key_values.0.key", "past_key_values.0.value", "present.0.key", "present.0.value"} < set(shapes)
    assert shapes["input_ids"] == ["batch", 1]
    assert shapes["present.0.key"] == ["batch", 4, "past_key_values_0_key_2 + 1", 8]
    graph = onnx.load(taken("t5").results["decode"].onnx_path).graph
    names = {value.name for value in (*graph.input, *graph.output)}
    assert {"past_key_values.0.decoder.key", "present.0.encoder.value"} < names


def test_graph_inputs_have_the_names_of_what_they_are_though_the_cache_came_empty(
    taken: Callable[[str], Taken],
) -> None:
    graph = onnx.load(taken("gpt2").results["prefill"].onnx_path).graph
    assert [value.name for value in graph.input] == ["input_ids", "attention_mask", "position_ids"]


def test_stage_that_fails_leaves_nothing_behind_of_those_before_it(tmp_path: Path) -> None:
    model, inputs = generators.build("t5")
    # A module of the encoder alone: that stage is exported, and the next one has no such module.
    with pytest.raises(modelexport.InputError, match=r"stage 'prefill'.*block\.0"):
        modelexport.export_stages(model, inputs, tmp_path / "model.onnx", boundaries=["block.0"])
    assert list(tmp_path.iterdir()) == []


def test_existing_stage_is_kept_unless_it_may_be_replaced(tmp_path: Path) -> None:
    model, inputs = generators.build("gpt2")
    (tmp_path / "model_decode.onnx").write_bytes(b"mine")
    with pytest.raises(modelexport.InputError, match=r"model_decode\.onnx: it exists"):
        modelexport.export_stages(model, inputs, tmp_path / "model.onnx", overwrite=False)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine"]
    seen: list[modelexport.ProgressEvent] = []
    first = modelexport.export_stages(
        model,
        inputs,
        tmp_path / "model.onnx",
        dynamic=False,
        external_data=True,
        overwrite=True,
        progress=seen.append,
    )
    assert [len(result.files) for result in first.values()] == [3, 3]
    assert all(path.is_file() for result in first.values() for path in result.files)
    assert {path for result in first.values() for path in result.files} == set(tmp_path.iterdir())
    # The weights of both stages are in one file.
    assert len(list(tmp_path.glob("*.data"))) == 1
    second = modelexport.export_stages(
        model, inputs, tmp_path / "model.onnx", dynamic=False, external_data=True, overwrite=True
    )
    assert {path for result in second.values() for path in result.files} == set(tmp_path.iterdir())
    (shared,) = tmp_path.glob("*.data")
    weights = sum(tensor.nbytes for tensor in model.parameters())
    assert shared.stat().st_size < 1.5 * weights
    for result in second.values():
        onnx.checker.check_model(result.onnx_path)
    assert seen[-1].step == "decode run"
    assert seen[-1].number == seen[-1].total == 14
    graph = onnx.load(first["decode"].onnx_path, load_external_data=False).graph
    assert not any(axis.dim_param for value in graph.input for axis in value.type.tensor_type.shape.dim)


class Plain(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def test_model_without_stages_is_refused_with_the_reason(tmp_path: Path) -> None:
    config = transformers.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    encoder = transformers.BertModel(config)
    tokens = torch.ones(1, 4, dtype=torch.int64)
    for model, reason in ((Plain(), "only generating models of transformers"), (encoder, "cannot generate")):
        with pytest.raises(modelexport.InputError, match=f"{type(model).__name__} has no stages: .*{reason}"):
            modelexport.export_stages(model, {"input_ids": tokens}, tmp_path / "model.onnx")
    model, _ = generators.build("gpt2")
    with pytest.raises(modelexport.InputError, match=r"decomposed into stages.*from nonsense fails with"):
        modelexport.export_stages(model, {"nonsense": tokens}, tmp_path / "model.onnx")
    with pytest.raises(modelexport.InputError, match="2 example inputs without names"):
        modelexport.export_stages(model, (tokens, tokens), tmp_path / "model.onnx")
    with pytest.raises(modelexport.InputError, match="'exporter' is not supported for stages"):
        modelexport.export_stages(model, tokens, tmp_path / "model.onnx", exporter="dynamo")
    assert list(tmp_path.iterdir()) == []


def make_gpt2() -> tuple[torch.nn.Module, dict[str, Any]]:
    return generators.build("gpt2")


def test_command_reports_each_stage(command: Callable[..., Outcome], tmp_path: Path) -> None:
    made = f"{__name__}:make_gpt2" if __name__.startswith("tests.") else "tests.integration.test_stages:make_gpt2"
    for option in (["--fx-graph", tmp_path / "graph.txt"], ["--strategy", "htp"], ["--exporter", "dynamo"]):
        refused = command("export", made, tmp_path / "gpt2.onnx", "--stages", *option)
        assert refused.code == 2
        assert "--stages" in refused.stderr
    done = command("export", made, tmp_path / "gpt2.onnx", "--stages", "--format", "json")
    assert done.code == 0, done.stderr
    jsonschema.validate(json.loads(done.stdout), export_schema())
    told = json.loads(done.stdout)["stages"]
    assert list(told) == ["prefill", "decode"]
    assert all(stage["summary"]["coverage"] == 1.0 for stage in told.values())
    assert all(Path(file).is_file() for stage in told.values() for file in stage["files"])
    again = command("export", made, tmp_path / "gpt2.onnx", "--stages")
    assert again.code == 2
    assert "it exists" in again.stderr
