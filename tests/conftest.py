"""Exports that many tests look at, each made once per worker."""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest
import torch

import modelexport
from modelexport.cli.main import run
from modelexport.torch_support.example_inputs import normalize_inputs
from tests.support import zoo
from tests.support.command import Outcome
from tests.support.faster_exports import faster_exports
from tests.support.plain import fresh_generated_code

# One thread for each worker and each process it starts: with one for each core, the threads of one worker wait for
# those of the other, and tracing a small model takes several times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# pytest-xdist sets it in its workers, and commands lay their reports out for it.
os.environ.pop("COLUMNS", None)
# Exports of the tests are not run in onnxruntime, except by the tests of that check.
os.environ["MODELEXPORT_CHECK"] = "off"
# No test asks the HuggingFace hub for anything; it reads this when it is imported.
os.environ["HF_HUB_OFFLINE"] = "1"
torch.set_num_threads(1)


@dataclasses.dataclass(frozen=True)
class Exported:
    """An example model with its export."""

    example: zoo.ExampleModel
    result: modelexport.ExportResult
    options: dict[str, Any]

    @property
    def path(self) -> Path:
        return self.result.onnx_path

    @property
    def document(self) -> modelexport.HierarchyDocument:
        return self.result.document

    @property
    def args(self) -> tuple[Any, ...]:
        return normalize_inputs(self.example.inputs, None)[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        return normalize_inputs(self.example.inputs, None)[1]

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        graph = onnx.load(self.path, load_external_data=False).graph
        leaves = torch.utils._pytree.tree_leaves((self.args, self.kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return {value.name: tensor.numpy() for value, tensor in zip(graph.input, tensors, strict=True)}


Exporter = Callable[..., Exported]


def claims(ours: Exported) -> dict[str, tuple[str, ...]]:
    """For each tensor of the main graph the owner and contributors of the node that makes it."""
    records = {node.id: node for node in ours.document.nodes}
    claims = {}
    for node in onnx.load(ours.path, load_external_data=False).graph.node:
        record = records[next(name for name in node.output if name)]
        for name in node.output:
            claims[name] = (record.module, *record.contributors)
    return claims


@pytest.fixture(autouse=True)
def _modes_of_torch_are_left() -> Iterator[None]:
    """No test leaves a mode of torch behind that changes the tests after it."""
    yield
    if (torch.is_grad_enabled(), torch._dynamo.eval_frame._stance.stance) != (True, "default"):
        torch.set_grad_enabled(True)
        torch.compiler.set_stance("default")
        pytest.fail("left behind: gradients off, or a stance of torch.compile")


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exporter:
    """``exported("bert", dynamic=True, optimize=False)``: made when first asked for."""

    @cache
    def export(name: str, *, dynamic: bool = False, optimize: bool = True) -> Exported:
        example = zoo.build(name)
        options: dict[str, Any] = {"optimize": optimize}
        if dynamic:
            options["dynamic_shapes"] = example.dynamic_shapes
        path = tmp_path_factory.mktemp(name) / f"{name}.onnx"
        fresh_generated_code()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = modelexport.export_model(example.model, example.inputs, path, **options)
        return Exported(example, result, options)

    return export


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Outcome]]:
    """The command within this process: what `modelexport` runs, without the time to import torch again."""
    quieted = ("torch", "onnxscript", "onnx_ir", "transformers")
    levels = {name: logging.getLogger(name).level for name in quieted}

    def call(*arguments: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["modelexport", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            run()
        stdout, stderr = capfd.readouterr()
        return Outcome(int(ended.value.code or 0), stdout, stderr)

    yield call
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture(autouse=True, scope="session")
def _groups_are_kept(request: pytest.FixtureRequest) -> None:
    """Fails where xdist ignores the groups: each worker would export every model, and nobody would notice."""
    grouped = [item for item in request.session.items if item.get_closest_marker("xdist_group") is not None]
    if getattr(request.config.option, "loadgroup", False) and any("@" not in item.nodeid for item in grouped):
        pytest.fail("pytest-xdist does not keep the tests of one model together: see pytest in pyproject.toml")


@pytest.fixture(autouse=True, scope="session")
def _fewer_collections() -> Iterator[None]:
    """Collects garbage less often: a collection searches all objects of torch and transformers."""
    threshold = gc.get_threshold()
    gc.set_threshold(20_000, 10, 20)
    yield
    gc.set_threshold(*threshold)


@pytest.fixture(autouse=True, scope="session")
def _faster_exports() -> Iterator[None]:
    with faster_exports():
        yield


@pytest.fixture(autouse=True, scope="session")
def _quick_fsync() -> Iterator[None]:
    """A real one waits for the disk, and its effect shows only after a power cut."""

    def fsync(handle: int) -> None:
        pass

    with mock.patch.object(os, "fsync", fsync):
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    # torch.manual_seed would also format a stack trace for each kind of device, in milliseconds.
    torch.default_generator.manual_seed(zoo.SEED)


@pytest.fixture(autouse=True, scope="session")
def _quiet_libraries() -> None:
    """torch and onnxscript log about operators of packages that are not installed."""
    for name in ("torch.onnx", "onnxscript"):
        logging.getLogger(name).setLevel(logging.ERROR)
