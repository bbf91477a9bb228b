"""Jobs from files, patterns and dicts: what is read, and every mistake as one clear error."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel

from modelexport import InputError
from modelexport.batching.job_files import read_jobs
from modelexport.batching.jobs import DTYPES, EXPORTERS, STRATEGIES
from modelexport.sources.loaders import LoadOptions
from modelexport.strategies.registry import AUTO, default_registry


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_toml_has_defaults_a_matrix_and_jobs_that_override_both(tmp_path: Path) -> None:
    file = write(
        tmp_path / "jobs.toml",
        """
        [defaults]
        steps = ["verify"]
        opset = 17

        [matrix]
        opset = [18, 20]

        [[job]]
        model = "a.models:make(8)"

        [[job]]
        model = "a.models:other"
        name = "fixed"
        opset = 19
        steps = []
        matrix = { dtype = ["float32", "float16"] }
        """,
    )
    jobs = {job.name: job for job in read_jobs([file])}
    assert list(jobs) == ["a.models-make-8-opset18", "a.models-make-8-opset20", "fixed-float32", "fixed-float16"]
    assert [job.opset for job in jobs.values()] == [18, 20, 19, 19]
    assert [job.steps for job in jobs.values()] == [("verify",), ("verify",), (), ()]
    assert jobs["fixed-float16"].dtype == "float16"


def test_csv_and_json_lines_have_the_same_jobs(tmp_path: Path) -> None:
    table = write(
        tmp_path / "jobs.csv",
        "model,opset,random_weights,steps,timeout\na.b:c,18,true,verify;validate,2.5\ntimm:x,,no,,\n",
    )
    lines = [
        {"model": "a.b:c", "opset": 18, "random_weights": True, "steps": ["verify", "validate"], "timeout": 2.5},
        {"model": "timm:x"},
    ]
    other = write(tmp_path / "jobs.jsonl", "\n".join(map(json.dumps, lines)) + "\n\n")
    assert read_jobs([table]) == read_jobs([other])


def test_pattern_matches_models_only_and_ids_come_from_a_file(tmp_path: Path) -> None:
    for name in ("one", "two", "none"):
        (tmp_path / name).mkdir()
    for name in ("one", "two"):
        write(tmp_path / name / "config.json", "{}")
    write(tmp_path / "notes.txt", "")
    ids = write(tmp_path / "ids.txt", "# models\ntimm:resnet18\n\nbuiltin:bert-tiny\n")
    jobs = read_jobs([f"{tmp_path}/*"], from_file=ids, defaults={"random_weights": True})
    assert [job.name for job in jobs] == ["one", "two", "timm-resnet18", "builtin-bert-tiny"]
    assert all(job.random_weights for job in jobs)


def test_names_are_distinct_and_equal_jobs_are_one(tmp_path: Path) -> None:
    jobs = read_jobs(["a.b:c", "a.b:c", {"model": "a.b:c", "opset": 18}, "a/b-c", "x" * 300 + ":f"])
    assert len({job.name for job in jobs}) == len(jobs) == 4
    assert all(len(job.name) <= 100 for job in jobs)


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"model": "a:b", "opsett": 18}, "job 1: unknown field 'opsett'; did you mean 'opset'?"),
        ({"model": "a:b", "input-shape": "x=1"}, "did you mean 'input_shape'?"),
        ({"model": "a:b", "opset": "18"}, "field 'opset' is wrong: expected `int | null`, got `str`"),
        ({"opset": 18}, "there is no field 'model'"),
        ({"model": "a:b", "steps": ["verfy"]}, "unknown step 'verfy'; did you mean 'verify'?"),
        ({"model": "a:b", "steps": ["extract"]}, "step 'extract' needs a selector"),
        ({"model": "a:b", "steps": ["verify:x"]}, "step 'verify' takes nothing after a colon"),
        ({"model": "a:b", "timeout": 0}, "timeout is 0"),
        ({"model": "a:b", "name": "../x"}, "'../x' cannot be the name of a job"),
        ({"model": "a:b", "name": "records"}, "'records' cannot be the name of a job"),
        ({"model": "a:b", "inputs": "x.npz", "input_shape": ["x=1"]}, "both give example inputs"),
        ({"model": "a:b", "dynamic": ["x:y"]}, "--dynamic 'x:y' cannot be read"),
        ({"model": "a:b", "matrix": {"opset": 18}}, "opset must be a list of values"),
        ({"model": "a:b", "matrix": {"name": ["x"]}}, "neither model nor name"),
        ({"model": "a:b", "matrix": [18]}, "matrix is not a table of lists"),
        ({"model": "a:b", "matrix": "opset"}, "matrix is not a table of lists"),
        ({"model": "a:b", "memory": float("inf")}, "memory is inf: give a positive number, at most 4,294,967,296"),
        ({"model": "a:b", "opset": -3}, "opset is -3: give a positive number"),
        ({"model": "a:b", "seed": 2**64}, "seed is 18446744073709551616: give a number of 64 bits"),
        ({"model": "a:b", "strategy": "fxx"}, "strategy is 'fxx': write auto, fx, htp, usage_based"),
        ({"model": "a:b", "check": "none"}, "check is 'none': write run, load, off"),
        ({"model": "a:b", "exporter": "dynamoo"}, "exporter is 'dynamoo': write dynamo, transformers, "),
        ({"model": "a:b", "dtype": "int8"}, "dtype is 'int8': write float32, float16, bfloat16, "),
        ({"model": "a:b", "matrix": {"dtype": ["float32", "x" * 5000]}}, f"dtype is '{'x' * 60}…': write float32"),
        ({"model": "a:b", "input_shape": "x=1xfoo"}, "job 1: --input-shape 'x=1xfoo' cannot be read"),
        ({"model": "a:b", "steps": ["extract:class:"]}, "job 1: the pattern 'class:' has an error"),
        ({"model": "a:b", "input_text": "\ud800"}, "field 'input_text' has half of a surrogate pair"),
        ({"model": "a:b", "name": "Index.html"}, "'Index.html' cannot be the name of a job"),
        ({"model": "a:b", "name": "x" * 5000}, f"'{'x' * 60}…' cannot be the name of a job"),
        ({"model": "no-such-folder/*"}, "no model matches 'no-such-folder/*'"),
    ],
)
def test_wrong_job_is_one_error_that_names_the_field(job: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        read_jobs([job])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("jobs.toml", "[[job]\n", "is not TOML"),
        ("jobs.toml", "[[jobs]]\nmodel='a:b'", "unknown table 'jobs'; did you mean 'job'?"),
        ("jobs.toml", "[defaults]\nopset=18", "has no jobs"),
        ("jobs.toml", "[defaults]\nopzet=18\n[[job]]\nmodel='a:b'", "unknown field 'opzet'"),
        ("jobs.jsonl", '{"model": "a:b"}\n[1]\n', "line 2: a job is a JSON object"),
        ("jobs.jsonl", '{"model": \n', "line 1: not JSON"),
        ("jobs.jsonl", '{"model": "a:b", "model": "a:c"}', "line 1: not JSON: the field 'model' is there twice"),
        ("jobs.toml", f"x = {'[' * 5000}", "is not TOML"),
        ("jobs.csv", "model,opset,opset\na:b,18,20\n", "line 1: two columns have the same name"),
        ("jobs.csv", "model,opzet\na:b,1\n", "unknown field 'opzet'; did you mean 'opset'?"),
        ("jobs.csv", "model,opset\na:b,eighteen\n", "line 2: field 'opset' is 'eighteen', not a number"),
        ("jobs.csv", "model,optimize\na:b,maybe\n", "write true or false"),
        ("jobs.csv", "model\na:b,1\n", "more cells than columns"),
        ("jobs.csv", "model\n", "there are no jobs"),
    ],
)
def test_wrong_file_is_one_error_that_names_the_place(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        read_jobs([write(tmp_path / name, text)])
    assert words in str(caught.value)


@pytest.mark.parametrize(("name", "text"), [("jobs.csv", "model\na:b\n"), ("jobs.toml", "[[job]]\nmodel = 'a:b'\n")])
def test_byte_order_mark_of_a_file_is_no_part_of_its_text(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert [job.model for job in read_jobs([tmp_path / name])] == ["a:b"]


def test_known_strategies_are_those_of_the_registry() -> None:
    assert [AUTO, *(strategy.name for strategy in default_registry())] == list(STRATEGIES)


def test_known_exporters_are_those_of_the_strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelexport.capture.capture.has_exporters", lambda: True)  # older transformers have none
    with torch.device("meta"):
        model = BertModel(BertConfig(num_hidden_layers=1))
    offered = {exporter for strategy in default_registry() for exporter in strategy.exporters(model)}
    assert offered == set(EXPORTERS)


def test_exporter_of_a_plugin_is_found_when_its_job_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = EntryPoint("mine", "package:Mine", "modelexport.strategies")
    monkeypatch.setattr("modelexport.batching.jobs.entry_points", lambda group: [plugin])
    (job,) = read_jobs([{"model": "a:b", "strategy": "mine", "exporter": "its-own"}])
    assert job.exporter == "its-own"


def test_known_types_are_floating_point_types_of_torch() -> None:
    assert all(LoadOptions(dtype=name).torch_dtype() is not None for name in DTYPES)


def test_two_jobs_with_one_given_name_are_an_error() -> None:
    with pytest.raises(InputError, match="has the name 'x' as well"):
        read_jobs([{"model": "a:b", "name": "x"}, {"model": "a:c", "name": "x"}])
