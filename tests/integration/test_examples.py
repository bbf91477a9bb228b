"""What the README, the docs and the help of every command say can be typed: it runs as it stands, with the effect."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import typer
from tests.support.batch_records import write_attempt, write_output
from tests.support.renaming import rename_file
from tests.support.tiny_models import save_bert
from typer.testing import CliRunner

import modelexport
from modelexport.cli.main import app
from modelexport.sources.loaders.model_reference import load_model
from modelexport.strategies.registry import default_registry

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("examples"), pytest.mark.filterwarnings("ignore")]

# It adds its folder to sys.path when it is first imported; in a test, the fixture would take that back.
importlib.import_module("onnxruntime.transformers")

ROOT = Path(__file__).parent.parent.parent
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
# Commands that find something end with 1; it is what the example is about. Times differ on a busy machine.
_FINDS = ("catalog", "compare", "profile")
# These need a bucket or a cluster: tests/cluster.
_ELSEWHERE = ("s3://", "--engine ray")


def run(line: str) -> None:
    words = shlex.split(line)
    assert words[0] == "modelexport", line
    # The plan only: tests/integration/test_batch.py runs the jobs of batches.
    words += ["--dry-run"] if words[1] == "batch" else []
    done = CliRunner().invoke(app, words[1:], catch_exceptions=False, standalone_mode=False)
    code = done.exit_code or done.return_value or 0
    assert code in ((0, 1) if words[1] in _FINDS else (0,)), f"{line}\n{done.output}"


def blocks(page: str) -> list[tuple[str, str]]:
    return _BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


def commands(text: str) -> list[str]:
    lines = (
        line.removeprefix("$ ").split("  #")[0].split(" > ")[0].strip()
        for line in text.replace("\\\n", " ").splitlines()
    )
    return [line for line in lines if line.startswith("modelexport ")]


# A package of the user's own.
_PACKAGE = """
import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv(x)) + x


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blk = Block()

    def forward(self, x):
        return self.blk(self.blk(x)).mean(dim=(2, 3))


class Scaled(torch.nn.Linear):
    def __init__(self, size, scale):
        super().__init__(size, size)
        self.scale = scale

    def forward(self, x):
        return super().forward(x) * self.scale


def make_net():
    torch.manual_seed(0)
    return Net(), torch.randn(1, 3, 32, 32)


def make_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=99, n_positions=32, n_embd=32, n_layer=1, n_head=4, bos_token_id=1, eos_token_id=2)
    tokens = torch.randint(3, 99, (2, 7))
    return GPT2LMHeadModel(config), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder but for a package of the user's own, and a model."""
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").write_text("")
    (tmp_path / "my_package" / "models.py").write_text(_PACKAGE)
    save_bert(tmp_path / "my-bert", tokenizer=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "my_package"]:
        del sys.modules[name]


def run_page(page: str, **names: Any) -> None:
    """Run every recipe of a page in order: its assertions hold, and its commands end as they should."""
    for language, text in blocks(page):
        if language == "python":
            exec(compile(text, page, "exec"), {**names})
        else:
            for line in commands(text):
                run(line)


def test_guide_runs_from_the_first_line_to_the_last(here: Path) -> None:
    run_page("docs/guide.md")
    original = modelexport.load(here / "bert.onnx").document
    assert modelexport.load(here / "layer0.onnx").document.extracted.call == "encoder.layer.0"
    assert len(list((here / "layers").glob("*.onnx"))) == 2
    for name in ("optimized-tagged", "quantized-tagged"):
        document = modelexport.load(here / f"{name}.onnx").document
        assert document.nodes
        assert len(document.nodes) != len(original.nodes)
        assert {node.module for node in document.nodes} & {"encoder.layer.0.attention.self.query"}
    # Beside what the page itself asserts: exactly those tables stay in float that the excluded modules hold.
    floats = [
        {
            tensor.name
            for tensor in onnx.load(here / name).graph.initializer
            if len(tensor.dims) == 2 and is_float(tensor)
        }
        for name in ("bert.onnx", "quantized.onnx")
    ]
    tables = {f"embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type")}
    assert tables < floats[0]
    assert floats[1] == tables


def is_float(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_type == onnx.TensorProto.FLOAT)


# What the recipes of a page take for granted.
_GIVEN: dict[str, Callable[[], dict[str, Any]]] = {
    "docs/api.md": dict,
    "docs/commands/analyze.md": dict,
    "docs/commands/cache.md": dict,
    "docs/commands/catalog.md": dict,
    "docs/commands/compare.md": dict,
    "docs/commands/export.md": lambda: {"make_net": own_package().make_net},
    "docs/commands/extract.md": dict,
    "docs/commands/inspect.md": dict,
    "docs/commands/profile.md": dict,
    "docs/commands/repair.md": dict,
    "docs/commands/retag.md": dict,
    "docs/commands/schema.md": dict,
    "docs/commands/select.md": dict,
    "docs/commands/tag.md": lambda: {"make_net": own_package().make_net},
    "docs/commands/tree.md": dict,
    "docs/commands/validate.md": dict,
    "docs/commands/view.md": dict,
    "docs/document.md": dict,
    "docs/exported-programs.md": dict,
    "docs/inputs.md": lambda: dict(zip(("model", "inputs"), bert_and_inputs(), strict=True)),
    "docs/recipes.md": dict,
    "docs/stages.md": lambda: dict(zip(("model", "tokens", "mask"), gpt2_and_inputs(), strict=True)),
    "docs/strategies.md": lambda: dict(zip(("model", "inputs"), own_package().make_net(), strict=True)),
}
# Those that a test of their own runs.
_APART = {"docs/guide.md", "docs/models.md", "docs/commands/batch.md", "docs/commands/verify.md"}


# Profiles that other tools wrote, by the name that the pages give them.
_SAMPLES = {
    "cnn.onnx": "cnn.onnx",
    "cnn_hierarchy.json": "cnn_hierarchy.json",
    "openvino_exec_graph.xml": "exec_graph.xml",
    "tensorrt_profile.json": "profile.json",
    "tensorrt_layers.json": "layers.json",
    "onnxruntime_profile.json": "ort-profile.json",
    "onnxruntime_optimized.onnx": "optimized.onnx",
}


def own_package() -> Any:
    return importlib.import_module("my_package.models")


def bert_and_inputs() -> tuple[Any, Any]:
    sourced = load_model("builtin:bert-tiny")
    return sourced.model, sourced.example_inputs


def gpt2_and_inputs() -> tuple[Any, Any, Any]:
    model, inputs = own_package().make_gpt2()
    return model, inputs["input_ids"], torch.ones_like(inputs["input_ids"])


@pytest.mark.parametrize("page", _GIVEN)
def test_recipes_of_a_page_run_and_their_assertions_hold(here: Path, material: Path, page: str) -> None:
    text = "".join(text for _, text in blocks(page))
    prepare(here, material, text, exports="modelexport export" in text)
    default_registry.cache_clear()
    try:
        run_page(page, modelexport=modelexport, **_GIVEN[page]())
    finally:
        default_registry.cache_clear()


def test_recipe_of_verify_names_the_module_whose_weight_is_wrong(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = blocks("docs/commands/verify.md")
    damage = next(text for _, text in found if "<<'END'" in text)
    export, rest = damage.split("python - <<'END'\n")
    code, verify = rest.split("END\n")
    run(export.strip())
    exec(compile(code, "docs/commands/verify.md", "exec"), {})
    capsys.readouterr()
    done = CliRunner().invoke(app, shlex.split(verify)[1:], catch_exceptions=False, standalone_mode=False)
    assert (done.exit_code or done.return_value) == 1
    assert "encoder.layer.1.attention.output.dense" in next(
        x for x in done.output.splitlines() if x.startswith("introduced")
    )
    names = {"make_net": own_package().make_net}
    exec(
        compile(next(text for language, text in found if language == "python"), "docs/commands/verify.md", "exec"),
        names,
    )
    names["test_export_computes_what_the_model_computes"](here)


def test_jobs_on_the_page_about_batches_are_read_and_its_commands_are_understood(here: Path) -> None:
    found = blocks("docs/commands/batch.md")
    prepare_batches(here)
    (here / "jobs.toml").write_text(next(text for language, text in found if language == "toml"), encoding="utf-8")
    report = modelexport.batch("jobs.toml", here / "out", dry_run=True)
    assert [job.job for job in report.jobs] == [
        *("my-bert-opset18", "my-bert-opset20", "timm-resnet18-opset18-float32", "timm-resnet18-opset18-float16"),
        *("timm-resnet18-opset20-float32", "timm-resnet18-opset20-float16", "net64"),
    ]
    lines = [line for language, text in found if not language for line in commands(text) if not elsewhere(line)]
    assert len(lines) == 2
    for line in lines:
        run(line)


def elsewhere(line: str) -> bool:
    return any(words in line for words in _ELSEWHERE)


def prepare_batches(here: Path) -> None:
    """Jobs, models, and the results of batches."""
    jobs = "[[job]]\nmodel = 'my_package.models:make_net'\n"
    (here / "jobs.toml").write_text(jobs, encoding="utf-8")
    shutil.copytree(here / "my-bert", here / "models" / "one")
    (here / "weights").mkdir()
    (here / "weights" / "net64.safetensors").touch()
    (here / "cache").mkdir()
    for name in ("exports", "last-week", "this-week"):
        write_attempt(write_output(here / name), 20, "resnet18-opset18")


def test_every_page_with_recipes_is_run() -> None:
    docs = ROOT / "docs"
    pages = {str(path.relative_to(ROOT)) for folder in (docs, docs / "commands") for path in folder.glob("*.md")}
    recipes = {page: [lang == "python" or commands(text) for lang, text in blocks(page)] for page in pages}
    assert {page for page, found in recipes.items() if any(found)} == {*_GIVEN, *_APART}


def test_page_about_models_runs(here: Path) -> None:
    lines = [line for language, text in blocks("docs/models.md") if not language for line in commands(text)]
    assert len(lines) >= 5
    for line in lines:
        run(line)


def test_readme_runs_and_prints_what_it_says(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = blocks("README.md")
    code = next(text for language, text in found if language == "python")
    shown = found[found.index(("python", code)) + 1][1]
    exec(compile(code, "README.md", "exec"), {})
    printed = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert [line.split() for line in shown.splitlines()] == printed
    for path in here.glob("net*"):
        path.unlink()
    own = code.partition("result = ")[0]
    (here / "my_package" / "models.py").write_text(f"{own}\n\ndef make_net():\n    return Net()\n")
    lines = [line for language, text in found if language != "python" for line in commands(text)]
    assert len(lines) >= 2
    for line in lines:
        run(line)


def examples() -> list[str]:
    found = []
    for name in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        function = getattr(importlib.import_module(f"modelexport.cli.{name}"), name)
        lines = [line.strip() for line in function.__doc__.splitlines()]
        own = [line for line in lines if line.startswith("modelexport ") and not elsewhere(line)]
        found += own or [f"the help of {name} has no example"]
    return found


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the examples speak of."""
    folder = tmp_path_factory.mktemp("examples")
    sourced = load_model("builtin:bert-tiny")
    modelexport.export_model(sourced.model, sourced.example_inputs, folder / "bert.onnx", strategy="fx")
    profile = modelexport.profile(folder / "bert.onnx", runs=2, warmup=1).as_dict()
    (folder / "model-profile.json").write_text(json.dumps(profile), encoding="utf-8")
    plain = modelexport.strip_hierarchy(onnx.load(folder / "bert.onnx"))
    for name in ("plain", "optimized", "quantized"):
        onnx.save(plain, folder / f"{name}.onnx")
    rename_file(folder / "plain.onnx", folder / "renamed.onnx")
    for name in ("model", "old", "new", "before", "after", "a", "b"):
        shutil.copy(folder / "bert.onnx", folder / f"{name}.onnx")
        shutil.copy(folder / "bert_hierarchy.json", folder / f"{name}_hierarchy.json")
    return folder


@pytest.mark.parametrize("line", examples())
def test_example_in_the_help_of_a_command_runs(here: Path, material: Path, line: str) -> None:
    prepare(here, material, line, exports=shlex.split(line)[1] in ("export", "inspect"))
    run(line.partition(" > ")[0])


def prepare(here: Path, material: Path, text: str, *, exports: bool) -> None:
    """Put the files into the folder that an example reads; one that exports writes them itself."""
    if re.search(r"modelexport (batch|catalog|cache) ", text):
        prepare_batches(here)
        return
    for path in () if exports else material.iterdir():
        (here / path.name).symlink_to(path) if path.suffix == ".data" else shutil.copy(path, here / path.name)
    if "cnn.onnx" in text:
        for sample, name in _SAMPLES.items():
            shutil.copy(ROOT / "tests" / "data" / "profiles" / sample, here / name)
    if "net.pt2" in text:
        model, inputs = own_package().make_net()
        torch.export.save(torch.export.export(model, (inputs,)), here / "net.pt2")
    elif "my_package" in text or "net.onnx" in text:
        model, inputs = own_package().make_net()
        np.savez(here / "inputs.npz", x=inputs.numpy())
        if not exports:
            for name in ("net", "model"):
                modelexport.export_model(model, inputs, here / f"{name}.onnx", strategy="fx", overwrite=True)
            onnx.save(modelexport.strip_hierarchy(onnx.load(here / "net.onnx")), here / "plain.onnx")
