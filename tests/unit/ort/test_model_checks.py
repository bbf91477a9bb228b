"""The ONNX checker and shape inference on files that they reject or that keep them busy: a finding, and no more."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper
from tests.support.hostile_graphs import function_bomb, model

from modelexport.analysis.validation.validator import validate
from modelexport.ort import model_checks
from modelexport.ort.model_checks import ModelChecks, check_file


def check(graph: onnx.ModelProto, path: Path) -> ModelChecks:
    onnx.save(graph, path)
    return check_file(path, graph)


def test_good_file_passes_and_its_types_are_inferred(tmp_path: Path) -> None:
    negated = helper.make_node("Neg", ["x"], ["a"])
    found = check(model(negated, helper.make_node("Neg", ["a"], ["y"])), tmp_path / "model.onnx")
    assert (found.checker, found.shapes) == ("", "")
    assert found.inferred is not None
    assert [value.name for value in found.inferred.value_info] == ["a"]


def test_each_problem_names_who_found_it(tmp_path: Path) -> None:
    found = check(model(helper.make_node("NoSuchOperation", ["x"], ["y"])), tmp_path / "model.onnx")
    assert found.checker.startswith("the ONNX checker rejects the file: ValidationError: ")
    assert "NoSuchOperation" in found.checker
    contradiction = helper.make_node("Reshape", ["x", "x"], ["y"])
    found = check(model(contradiction), tmp_path / "model.onnx")
    assert found.shapes.startswith("shape inference rejects the file: ")


def test_file_that_keeps_shape_inference_busy_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_checks, "_SECONDS", 1)
    path = tmp_path / "model.onnx"
    onnx.save(function_bomb(24), path)
    report = validate(path)
    found = {finding.rule: finding.message for finding in report.findings}
    assert "shape inference timed out after 1 s" in found["shape-inference"]
    assert not report.is_valid
