"""Rules about the ONNX graph: the ONNX checker and shape inference."""

from __future__ import annotations

from collections.abc import Iterator

from modelexport.analysis.validation.rule import EXPORT_AGAIN, Rule, Violation
from modelexport.analysis.validation.validated_file import ValidatedFile


def _check_onnx(file: ValidatedFile) -> Iterator[Violation]:
    if file.model_checks.checker:
        yield Violation(file.model_checks.checker)


def _check_shapes(file: ValidatedFile) -> Iterator[Violation]:
    if file.model_checks.shapes:
        yield Violation(file.model_checks.shapes)


GRAPH_RULES = (
    Rule("onnx-checker", "the ONNX checker accepts the file", EXPORT_AGAIN, _check_onnx),
    Rule("shape-inference", "strict shape inference finds no contradiction", EXPORT_AGAIN, _check_shapes),
)
