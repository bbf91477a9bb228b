"""The report of a verification in JSON: read back as it was, without torch."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from modelexport.analysis.verification_report import (
    CallVerification,
    Difference,
    TensorVerification,
    Verdict,
    VerificationReport,
    read_verification,
    verification_schema,
)
from modelexport.errors import FileFormatError, InputError


def report() -> VerificationReport:
    small = Difference(1e-6, 1e-7, 1.0, 0.01, 8, sqnr=140.0)
    infinite = Difference(math.inf, math.inf, None, math.inf, 8, outside=1, nonfinite=1)
    tensor = TensorVerification("output", "y", "float32", introduced=infinite)
    calls = (
        CallVerification("a", "/Net/A", "A", Verdict.INTRODUCED, introduced=infinite, tensors=(tensor,)),
        CallVerification("b", "/Net/B", "B", Verdict.WITHIN, introduced=small, total=small),
    )
    return VerificationReport(calls, None, 1e-3, "", 1, ("float32",), file="net.onnx", graph_hash="ab" * 16)


def written(folder: Path, content: object) -> Path:
    path = folder / "verify.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_report_is_read_back_as_it_was(tmp_path: Path) -> None:
    assert read_verification(written(tmp_path, report().as_dict())) == report()


def test_json_names_the_file_and_its_graph(tmp_path: Path) -> None:
    content = report().as_dict() | {"model": "my_package:make_net"}
    assert (content["file"], content["graph_hash"]) == ("net.onnx", "ab" * 16)
    jsonschema.validate(content, verification_schema())


@pytest.mark.parametrize("content", [{}, [], {"calls": [{"absolute": None}]}, {**report().as_dict(), "calls": 3}])
def test_other_json_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(FileFormatError, match="was not written by modelexport verify"):
        read_verification(written(tmp_path, content))


def test_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"verify\.json cannot be read"):
        read_verification(tmp_path / "verify.json")


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    path = written(tmp_path, report().as_dict())
    code = f"import sys, modelexport; modelexport.read_verification({str(path)!r}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
