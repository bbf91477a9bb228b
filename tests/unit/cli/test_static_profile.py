"""`modelexport profile --static` and `--import`: what they print, and which options they refuse."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from tests.support.command import Outcome

from modelexport.profiling.static_cost import profile_statically, static_schema

SAMPLES = Path(__file__).parents[2] / "data" / "profiles"
MODEL = SAMPLES / "cnn.onnx"
OPENVINO = f"openvino:{SAMPLES}/openvino_exec_graph.xml"
Command = Callable[..., Outcome]


def test_table_fits_eighty_columns_and_says_what_was_counted(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = command("profile", MODEL, "--static")
    assert done.code == 0
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "516 kFLOPs (258 kMACs), 18.5 k other operations" in done.stdout
    first = next(position for position, line in enumerate(lines) if line.startswith("call ")) + 1
    # The second convolution, whose node does the work of the norm too, has the most.
    assert lines[first].split()[:2] == ["features.2.norm", "294.91"]


def test_json_follows_its_schema_and_csv_has_the_same_numbers(command: Command) -> None:
    content = json.loads(command("profile", MODEL, "--static", "--format", "json").stdout)
    jsonschema.validate(content, static_schema())
    report = profile_statically(MODEL)
    assert content["total"]["macs"] == report.total.macs
    rows = list(csv.DictReader(io.StringIO(command("profile", MODEL, "--static", "--format", "csv").stdout)))
    assert {row["name"]: int(row["own_flops"]) for row in rows} == {r.name: r.own.flops for r in report.rows()}
    assert next(row for row in rows if row["name"] == "(root)")["total_macs"] == str(report.total.macs)


def test_rows_by_module_class_and_operator_with_a_depth_and_a_selector(command: Command) -> None:
    def names(*options: str) -> list[str]:
        done = command("profile", MODEL, "--static", "--format", "csv", *options)
        return [row["name"] for row in csv.DictReader(io.StringIO(done.stdout))]

    assert names("--by", "op")[0] == "Conv"
    assert names("--by", "module", "--depth", "1") == ["features", "head", "(root)"]
    assert names("--by", "class", "--select", "features.0") == ["BatchNorm2d", "ReLU", "ConvBlock"]
    assert names("--sort", "total")[0] == "(root)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--static", "--runs", "3"), "--static does not run the file: leave out --runs"),
        (("--static", "--input-shape", "x=1x3x8x8"), "leave out --input-shape"),
        (("--static", "--import", OPENVINO), "leave out --import"),
        (("--static", "--format", "speedscope"), "formats human, json and csv, not speedscope"),
        (("--static", "--axis", "batch=8"), "no dynamic axis 'batch'"),
        (("--static", "--select", "nothing"), "nothing"),
        (("--import", OPENVINO, "--provider", "cpu"), "--import takes the times from a profile: leave out --provider"),
        (("--import", OPENVINO, "--axis", "batch=8"), "leave out --axis"),
        (("--import", "profile.json"), "write ort:profile.json"),
    ],
)
def test_option_that_would_have_no_effect_is_refused(command: Command, options: tuple[str, ...], message: str) -> None:
    done = command("profile", MODEL, *options)
    assert done.code == 2
    assert message in done.stderr


def test_import_prints_times_by_module(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = command("profile", MODEL, "--import", OPENVINO, "--by", "module")
    assert done.code == 0
    assert "OpenVINO" in done.stdout
    assert "features.0.act" in done.stdout
    assert "optimization" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_imported_profile_is_compared_with_another(command: Command, tmp_path: Path) -> None:
    saved = tmp_path / "before.json"
    assert command("profile", MODEL, "--import", OPENVINO, "-o", saved).code == 0
    done = command("profile", MODEL, "--import", OPENVINO, "--compare", saved, "--format", "json")
    assert done.code == 0
    json.loads(done.stdout)
