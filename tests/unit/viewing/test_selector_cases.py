"""The cases that the selectors of the page are tested against have calls, nodes and errors."""

from __future__ import annotations

import pytest
from tests.conftest import Exporter
from tests.support.selector_cases import PATTERNS, cases_of


@pytest.mark.xdist_group("cnn")
def test_cases_have_calls_nodes_and_errors(exported: Exporter) -> None:
    found = cases_of(exported("cnn").path)
    cases = found["cases"]
    assert len(cases) > len(PATTERNS) - 5
    for side in ("calls", "nodes", "owned"):
        picked = [case for case in cases if case[side].get("ids")]
        assert len(picked) > 20
        assert sum("error" in case[side] for case in cases) > 20
    assert any(case["nodes"] != case["owned"] for case in cases)
    assert found["page"]["file"] == "cnn.onnx"
