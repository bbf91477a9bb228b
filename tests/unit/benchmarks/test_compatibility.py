"""The page of the tested versions: outcomes of pytest, and owners compared with those of the pinned version."""

from __future__ import annotations

from typing import Any

from benchmarks.compatibility import (
    lower_bounds,
    outcomes,
    page,
    pinned_constraints,
    pinned_version,
    with_earlier_rows,
)

_REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.a" name="test_good"/>
<testcase classname="tests.unit.a" name="test_bad"><failure message="no"/></testcase>
<testcase classname="tests.unit.a" name="test_bad"><error message="no"/></testcase>
<testcase classname="tests.unit.a" name="test_left_out"><skipped message="no"/></testcase>
</testsuite></testsuites>"""


def _result(
    torch: str, owners: list[list[Any]], *, failed: tuple[str, ...] = (), lowest: bool = False
) -> dict[str, Any]:
    tests = {"passed": 3, "skipped": 1, "failed": list(failed), "commit": "abc"}
    parts = {"canaries": tests, "round trip": {"exports": {"CNN, fx": {"owners": owners}}, "commit": "abc"}}
    return {"versions": {"torch": torch, "python": "3.11.2"}, "lowest": lowest, "parts": parts}


def test_outcomes_name_each_failed_test_once() -> None:
    assert outcomes(_REPORT) == {"passed": 1, "skipped": 1, "failed": ["tests.unit.a::test_bad"]}


def test_page_has_a_row_for_each_result_in_the_order_of_versions() -> None:
    owners = [["conv", "Conv", 1]]
    results = [_result("2.15.0", owners), _result("2.9.1+cu128", owners, failed=("tests.a::test_b",))]
    text = page([*results, _result("2.13.0+cpu", owners)], "2.13.0")
    rows = [line for line in text.splitlines() if line.endswith("| abc |")]
    assert [row.split(" | ")[0] for row in rows] == ["| 2.9.1+cu128", "| 2.13.0+cpu", "| 2.15.0"]
    assert "| 1 failed, 3 passed, 1 skipped | not run | not run | 1 passed | 1 of 1 |" in rows[0]
    assert "- torch 2.9.1+cu128, Python 3.11.2: canaries: tests.a::test_b" in text


def test_rows_of_versions_that_were_not_tested_again_stay() -> None:
    earlier = page([_result("2.9.0", [], lowest=True), _result("2.13.0+cpu", []), _result("2.15.0", [])], "2.13.0")
    tested = page([_result("2.11.0", []), _result("2.13.0+cpu", [], failed=("tests.a::test_b",))], "2.13.0")
    text = with_earlier_rows(tested, earlier)
    for part in text.partition("## Versions")[::2]:
        rows = [line.split(" | ")[0] for line in part.splitlines() if line.startswith("| 2.")]
        assert rows == ["| 2.9.0, lower bounds", "| 2.11.0", "| 2.13.0+cpu", "| 2.15.0"]
    assert text.count("1 failed, 3 passed") == 1
    assert with_earlier_rows(tested, tested) == tested


def test_page_names_the_calls_that_own_other_nodes_than_with_the_pinned_version() -> None:
    changed = _result("2.15.0", [["", "Cast", 1], ["conv", "Conv", 2]])
    text = page([changed, _result("2.13.0", [["conv", "Conv", 1]])], "2.13.0")
    assert "owners, CNN, fx: 1 Cast in `the root module`, not 0; 2 Conv in `conv`, not 1" in text
    assert "| 0 of 1 |" in text


def test_owners_are_not_compared_without_a_result_of_the_pinned_version() -> None:
    lowest = _result("2.13.0", [["conv", "Conv", 1]], lowest=True)
    assert "not compared" in page([lowest, _result("2.15.0", [])], "2.13.0")


def test_constraints_leave_torch_to_the_version_under_test() -> None:
    assert pinned_version().count(".") == 2
    for constraints in (pinned_constraints(), lower_bounds()):
        assert "torch" not in {line.partition("==")[0] for line in constraints}
        assert any(line.startswith("onnx==") for line in constraints)
