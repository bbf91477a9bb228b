"""`modelexport validate` as people and scripts meet it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from tests.conftest import Exporter
from tests.support.breaking import read_document, with_owners, write_artifact
from tests.support.command import Outcome
from tests.support.command_process import in_process

pytestmark = [pytest.mark.sanity, pytest.mark.xdist_group("no_grad")]


Command = Callable[..., Outcome]
# Runs the command, and says at the end whether torch was loaded.
_SAYING_TORCH = """
import sys
from modelexport.cli.main import run
try: run()
finally: print("torch" in sys.modules, file=sys.stderr)
"""


@pytest.fixture
def good(exported: Exporter) -> Path:
    return exported("no_grad").path


@pytest.fixture
def contaminated(good: Path, tmp_path: Path) -> Path:
    document = read_document(good)
    node = next(record.id for record in document.nodes if record.module == "trained.lin")
    wrong = with_owners(document, {node: "frozen.norm"})
    return write_artifact(tmp_path / "wrong.onnx", onnx.load(good), wrong)


def test_a_good_file_is_valid_and_needs_no_torch(good: Path) -> None:
    done = in_process("validate", good, "--check-contamination", "--baseline", good, script=_SAYING_TORCH)
    assert done.code == 0, done.stderr
    assert "0 findings: valid" in done.stdout
    assert done.stderr.splitlines()[-1] == "False"


def test_wrong_owner_is_reported_with_all_fields(command: Command, contaminated: Path) -> None:
    assert command("validate", contaminated).code == 0
    done = command("validate", contaminated, "--check-contamination")
    assert done.code == 1
    assert "is owned by frozen.norm" in done.stdout
    assert "has: /NoGrad/Block.frozen/LayerNorm" in done.stdout
    assert "evidence supports: /NoGrad/Block.trained" in done.stdout
    assert "fix contamination:" in done.stdout
    assert "Traceback" not in done.stderr


def test_json_and_sarif_are_for_programs(command: Command, contaminated: Path) -> None:
    report = json.loads(command("validate", contaminated, "--check-contamination", "--format", "json").stdout)
    assert report["valid"] is False
    assert report["errors"] == 1
    (finding,) = report["findings"]
    assert finding["rule"] == "contamination"
    assert finding["case"]["supported_modules"] == ["trained.lin"]
    log = json.loads(command("validate", contaminated, "--check-contamination", "--format", "sarif").stdout)
    assert log["runs"][0]["results"][0]["properties"]["case"] == finding["case"]


def test_names_from_the_file_cannot_write_to_the_terminal(command: Command, good: Path, tmp_path: Path) -> None:
    model = onnx.load(good)
    model.graph.node[0].metadata_props[0].value = "\x1b[31mred"
    path = tmp_path / "escape.onnx"
    path.write_bytes(model.SerializeToString())
    done = command("validate", path)
    assert done.code in (0, 1)
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("arguments", [("nowhere.onnx",), ("README.md", "--format", "yaml"), ("README.md",)])
def test_bad_input_ends_with_2_and_one_line(command: Command, arguments: tuple[str, ...]) -> None:
    done = command("validate", *arguments)
    assert done.code == 2
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr
