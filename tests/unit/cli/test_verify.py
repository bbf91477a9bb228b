"""`modelexport verify` as people and scripts meet it."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.support.breaking import read_document
from tests.support.damage import change_weight
from tests.support.factories import seeded_net

import modelexport
from modelexport.cli.main import run
from modelexport.hierarchy.document_codec import encode_document
from modelexport.storage.transaction import sidecar_path

ROOT = Path(__file__).parents[2]
MODEL = ("--model", "tests.support.factories:seeded_net")
pytestmark = [pytest.mark.sanity, pytest.mark.xdist_group("cli_verify")]


@dataclasses.dataclass(frozen=True)
class Outcome:
    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Outcome]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """The command within this process, without the time to import torch again."""
    monkeypatch.chdir(ROOT)
    levels = {name: logging.getLogger(name).level for name in ("torch.onnx", "onnxscript", "onnx_ir")}

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["modelexport", "verify", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            run()
        return Outcome(int(ended.value.code or 0), *capfd.readouterr())

    yield call
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def in_process(*arguments: object) -> Outcome:
    """The command in a process of its own, which at the end says whether torch was loaded."""
    code = (
        "import sys; from modelexport.cli.main import run\ntry: run()\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    words = [sys.executable, "-c", code, "verify", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("net") / "net.onnx"
    model, inputs = seeded_net()
    modelexport.export_model(model.eval(), inputs, path, optimize=False)
    return path


@pytest.fixture(scope="module")
def wrong(good: Path) -> Path:
    path = good.with_name("wrong.onnx")
    change_weight(good, path, read_document(good), "stage.lin")
    return path


def test_right_file_passes(command: Command, good: Path) -> None:
    done = command(good, *MODEL)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:4] == ["verdict", "call", "class", "x"]
    assert all(line.startswith("within ") for line in lines[1:6])
    assert lines[-1] == "5 calls: 5 within tolerance"
    assert "5 calls compared in" in done.stderr


def test_wrong_weight_is_named_first_and_exits_with_findings(command: Command, wrong: Path) -> None:
    done = command(wrong, *MODEL, "--limit", "1")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[1].split()[:3] == ["introduced", "stage.lin", "Linear"]
    assert sorted(line.split()[:2] for line in lines[2:4]) == [["inside", "(root)"], ["inside", "stage"]]
    assert lines[4].split()[:2] == ["inherited", "stage.norm"]
    assert "introduced inside, by 'stage.lin'" in lines[2]
    assert lines[5].split()[:2] == ["within", "conv"]
    assert "Traceback" not in done.stderr


def test_json_is_for_programs(command: Command, wrong: Path) -> None:
    done = command(wrong, *MODEL, "--format", "json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["passed"] is False
    assert report["counts"] == {"introduced": 1, "inside": 2, "inherited": 1, "within": 1}
    assert report["calls"][0]["call"] == "stage.lin"
    assert report["calls"][0]["introduced"]["absolute"] > 0.01


def test_csv_is_safe_for_spreadsheets(command: Command, wrong: Path, tmp_path: Path) -> None:
    document = read_document(wrong)
    formula = "=HYPERLINK(1)"
    calls = tuple(msgspec.structs.replace(c, tag=formula) if c.id == "conv" else c for c in document.calls)
    path = tmp_path / "named.onnx"
    path.write_bytes(wrong.read_bytes())
    sidecar_path(path).write_bytes(encode_document(msgspec.structs.replace(document, calls=calls)))
    done = command(path, *MODEL, "--format", "csv")
    assert done.returncode == 1
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert rows[0]["call"] == "stage.lin"
    assert float(rows[0]["introduced_absolute"]) > 0.01
    assert float(rows[0]["introduced_cosine"]) < 1
    tagged = next(row for row in rows if row["call"] == "conv")
    assert tagged["tag"] == f"'{formula}"


def test_inputs_selection_and_tolerance_are_taken(command: Command, good: Path, wrong: Path, tmp_path: Path) -> None:
    arrays = tmp_path / "inputs.npz"
    np.savez(arrays, x=np.ones((2, 3, 4, 4), np.float32))
    chosen = ("--inputs", arrays, "--select", "class:Stage or conv", "--memory", "1")
    assert command(good, *MODEL, *chosen).stdout.splitlines()[-1] == "2 calls: 2 within tolerance"
    assert command(good, *MODEL, "--input-shape", "x=2x3x4x4", "--tolerance", "1e-2").returncode == 0
    assert command(wrong, *MODEL, "--tolerance", "rtol=10,atol=10").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.onnx", *MODEL), "missing.onnx is not a file"),
        (("{good}", *MODEL, "--tolerance", "small"), "--tolerance 'small' cannot be parsed"),
        (("{good}", *MODEL, "--inputs", "a.npz", "--input-shape", "x=1"), "use one of them"),
    ],
)
def test_usage_error_is_reported_before_torch_is_loaded(good: Path, arguments: tuple[str, ...], message: str) -> None:
    done = in_process(*(argument.format(good=good) for argument in arguments))
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.splitlines()[-1] == "False"


def test_other_model_is_refused(command: Command, good: Path) -> None:
    done = command(good, "--model", "tests.support.factories:tied", "--input-shape", "x=1x4")
    assert done.returncode == 2
    assert "is not the exported model" in done.stderr
    assert "Traceback" not in done.stderr
