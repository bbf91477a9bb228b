"""Bad input gets an error of ours that names it and says what to do, and nothing is written."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from modelexport.errors import (
    DataDependentError,
    ExportError,
    InputError,
    ModelExportError,
    StorageError,
    StrategyIncompatibleError,
    UnknownStrategyError,
)
from modelexport.exporting.export import export_model
from modelexport.exporting.exporters import HierarchyExporter, UnifiedExporter
from modelexport.exporting.result import ProgressEvent


class Lookup(nn.Module):
    """Takes tokens, and a scale by keyword alone; counts how often it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 3)
        self.runs = 0

    def forward(self, tokens: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return self.head(self.table(tokens) * scale)


TOKENS, SCALE = torch.tensor([[1, 2, 3]]), torch.ones(4)
GOOD = {"tokens": TOKENS, "scale": SCALE}


def files(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): None if p.is_dir() else p.read_bytes() for p in sorted(folder.rglob("*"))}


@dataclasses.dataclass(frozen=True)
class Bad:
    """One thing wrong with an export, the error it gets, and what the message has to say."""

    says: tuple[str, ...]
    model: Any = dataclasses.field(default_factory=Lookup)
    inputs: Any = dataclasses.field(default_factory=lambda: GOOD)
    path: str = "model.onnx"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    error: type[ModelExportError] = InputError
    prepare: Callable[[Path], object] = lambda folder: None


def not_a_module(what: Any, *says: str) -> Bad:
    return Bad(("model", "torch.nn.Module", "pass the module", *says), model=what)


def inputs(given: Any, *says: str) -> Bad:
    return Bad(says, inputs=given)


def path(name: str, *says: str, prepare: Callable[[Path], object] = lambda folder: None) -> Bad:
    return Bad((name, *says), path=name, prepare=prepare)


def option(name: str, value: Any, *says: str, error: type[ModelExportError] = InputError) -> Bad:
    return Bad((name, *says), options={name: value}, error=error)


FORM = ("example inputs", "tensor", "tuple", "list", "dict")
FOUND_BEFORE_TRACING = {
    # the model
    "no model": not_a_module(None, "NoneType"),
    "a function": not_a_module(lambda tokens, scale: tokens, "function"),
    "the class itself": not_a_module(Lookup, "class", "create the model first"),
    "weights alone": not_a_module({"weight": SCALE}, "dict"),
    # inputs that forward has no arguments for
    "too many inputs": inputs((TOKENS, SCALE, SCALE), "example inputs", "Lookup.forward", "too many positional"),
    "too few inputs": inputs({"scale": SCALE}, "example inputs", "Lookup.forward", "'tokens'", "given: scale"),
    "no inputs": inputs((), "example inputs", "Lookup.forward", "'tokens'", "given: nothing"),
    "an unknown keyword": inputs({**GOOD, "mask": SCALE}, "example inputs", "Lookup.forward", "'mask'"),
    "a keyword argument by position": inputs((TOKENS, SCALE), "example inputs", "too many positional", "dict"),
    "an input twice": inputs((TOKENS, GOOD), "example inputs", "multiple values", "'tokens'"),
    "a keyword that is no string": inputs({1: TOKENS}, "keyword argument 1", "example inputs"),
    # inputs of a type that says nothing
    "None for inputs": inputs(None, "NoneType", *FORM),
    "a number for inputs": inputs(3, "int", *FORM),
    "text for inputs": inputs("hello", "str", *FORM),
    "an array for inputs": inputs(np.ones(3), "ndarray", *FORM),
    "a generator for inputs": inputs((t for t in (TOKENS,)), "generator", *FORM),
    "a set for inputs": inputs({1, 2}, "set", *FORM),
    # the place
    "a folder that is missing": path("missing/model.onnx", "No such file", "Create that folder"),
    "a file for a folder": path("file/model.onnx", "file", prepare=lambda folder: (folder / "file").touch()),
    "another suffix": path("model.pt", ".onnx", "must end in"),
    "no suffix": path("model", "must end in .onnx", "model.onnx"),
    "a folder in its place": path("x.onnx", "folder", "Choose", prepare=lambda folder: (folder / "x.onnx").mkdir()),
    "a link in its place": path(
        "x.onnx", "symbolic link", "model.onnx itself", prepare=lambda f: (f / "x.onnx").symlink_to(f / "model.onnx")
    ),
    "a name too long": path("x" * 300 + ".onnx", "too long", "shorter"),
    # options
    "an unknown strategy": option("strategy", "fxx", "'fxx'", "choose one of", "fx", error=UnknownStrategyError),
    "a strategy that is no name": option("strategy", None, "None", "choose one of", error=UnknownStrategyError),
    "a misspelled torch option": option("opset_versoin", 20, "did you mean 'opset_version'?"),
    "an unknown torch option": option("zzz", 20, "unknown option", "torch.onnx.export"),
    "the exporter as an option": option("dynamo", False, "unknown option"),
    "a string of exceptions": option("torch_nn_exceptions", "Linear", "'all'", "'none'", "['Linear']"),
    "a number of boundaries": option("boundaries", 5, "5", "list of module paths"),
    "a boundary that is a number": Bad(("boundary 5", "path"), options={"boundaries": [5]}),
    "progress that cannot be called": option("progress", 3, "3", "ProgressEvent"),
    "a registry that is none": option("registry", "x", "'x'", "StrategyRegistry"),
    "one name for all outputs": option("output_names", "logits", "'logits'", "output_names=['name']"),
    "an opset that is no number": option("opset_version", True, "True", "choose a number"),
    "a path of a graph that is none": option("fx_graph_path", 3, "int", "path"),
    "an existing output": Bad(("model.onnx", "exists", "force"), options={"overwrite": False}),
    "a dump in a missing folder": Bad(("missing", "Create it"), options={"fx_graph_path": "missing/graph.txt"}),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The process's own folder, with something at the place of the output and its sidecar."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"an older model")
    (tmp_path / "model_hierarchy.json").write_bytes(b"an older sidecar")
    return tmp_path


def check_refused(bad: Bad, folder: Path) -> ModelExportError:
    """Export; the error is the right one, its message is readable, and the folder is as it was."""
    bad.prepare(folder)
    before = files(folder)
    with pytest.raises(ModelExportError) as caught:
        export_model(bad.model, bad.inputs, bad.path, **{"overwrite": True, **bad.options})
    assert caught.type is bad.error
    message = str(caught.value)
    assert [word for word in bad.says if word not in message] == []
    assert "\x1b" not in message
    assert "\n" not in message
    assert files(folder) == before
    return caught.value


@pytest.mark.parametrize("bad", FOUND_BEFORE_TRACING.values(), ids=FOUND_BEFORE_TRACING)
def test_found_before_the_model_runs(bad: Bad, folder: Path) -> None:
    check_refused(bad, folder)
    assert getattr(bad.model, "runs", 0) == 0


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="no folder that not even root can write to")
def test_place_that_cannot_be_written_is_found_before_the_model_runs(folder: Path) -> None:
    bad = path("/sys/model.onnx", "hoose")
    check_refused(bad, folder)
    assert bad.model.runs == 0


@pytest.mark.parametrize(
    "bad",
    [
        inputs({**GOOD, "scale": torch.ones(5)}, "Lookup.forward", "example inputs", "size of tensor", "shapes"),
        inputs({**GOOD, "tokens": TOKENS.double()}, "Lookup.forward", "example inputs", "Expected tensor", "types"),
        inputs({**GOOD, "scale": "big"}, "Lookup.forward", "example inputs", "TypeError", "types"),
    ],
    ids=["shape", "dtype", "no tensor"],
)
def test_inputs_that_forward_fails_on_are_what_is_blamed(bad: Bad, folder: Path) -> None:
    error = check_refused(bad, folder)
    assert error.__cause__ is not None  # torch's own report


@pytest.mark.parametrize("exporter", [HierarchyExporter, UnifiedExporter])
def test_exporter_classes_refuse_the_same(exporter: type[HierarchyExporter], folder: Path) -> None:
    before = files(folder)
    with pytest.raises(InputError, match="did you mean 'opset_version'"):
        exporter(opset_versoin=20, overwrite=True).export(Lookup(), GOOD, "model.onnx")
    assert files(folder) == before


# --- what torch cannot export ----------------------------------------------------------------------------------


class Undecided(nn.Module):
    """Its path depends on the data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1


def test_model_that_torch_cannot_export_gets_the_root_cause_in_one_line(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = Bad(
        ("strategy 'fx'", "data-dependent", "test_bad_input.py:", "torch.cond"),
        model=Undecided(),
        inputs=torch.ones(2),
        options={"strategy": "fx"},
        error=DataDependentError,
    )
    error = check_refused(bad, folder)
    assert isinstance(error, StrategyIncompatibleError)
    assert isinstance(error, ExportError)
    assert error.strategy == "fx"
    assert error.reason in str(error)
    assert error.suggestion in str(error)
    chain = [error.__cause__]
    while chain[-1] is not None:
        chain.append(chain[-1].__cause__)
    assert len(chain) > 2  # torch's own error, what it wraps, and None
    root = chain[-2]
    assert type(root).__name__ in error.reason
    assert " ".join(str(root).split())[:60] in error.reason
    assert capfd.readouterr().out == ""  # a program reads stdout: torch's printing does not go there


def raise_in_colour(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("\x1b[31mred\x1b[0m")


def test_escape_sequences_in_what_forward_raises_are_taken_out(folder: Path) -> None:
    model = nn.Identity()
    model.forward = raise_in_colour  # type: ignore[method-assign]
    check_refused(Bad(("ValueError", "red"), model=model, inputs=SCALE), folder)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"output_path": None}, ("NoneType",)),
        ({"output_path": io.BytesIO()}, ("BytesIO",)),
        ({"kwargs": 5}, ("kwargs", "int")),
        ({"torch_nn_exceptions": 5}, ("torch_nn_exceptions", "5")),
        ({"include": 5}, ("include", "5")),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_argument_of_the_wrong_type_is_named(given: dict[str, Any], says: tuple[str, ...], folder: Path) -> None:
    before = files(folder)
    with pytest.raises(InputError) as caught:
        export_model(
            **{"model": Lookup(), "example_inputs": GOOD, "output_path": "model.onnx", "overwrite": True, **given}
        )
    assert [word for word in says if word not in str(caught.value)] == []
    assert files(folder) == before


@pytest.mark.parametrize("name", ["model.onnx", "model_hierarchy.json"])
def test_dump_in_the_place_of_a_file_of_the_artifact_is_refused(name: str, folder: Path) -> None:
    check_refused(Bad((name,), options={"fx_graph_path": name}), folder)


def test_output_that_appears_meanwhile_is_not_replaced_without_overwrite(tmp_path: Path) -> None:
    target = tmp_path / "model.onnx"

    def appear(event: ProgressEvent) -> None:
        if (event.step, event.finished) == ("write", False):
            target.write_bytes(b"somebody else's")

    with pytest.raises((InputError, StorageError), match=re.escape(str(target))):
        export_model(Lookup(), GOOD, target, overwrite=False, progress=appear)
    assert files(tmp_path) == {"model.onnx": b"somebody else's"}
