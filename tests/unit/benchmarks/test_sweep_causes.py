"""Whose fault a failure of the sweep is."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.sweep_causes import whose, whose_wrong_file
from benchmarks.sweep_page import page

GUARD = "NoWayError: fx (dynamo): GuardOnDataDependentSymNode: u0 > 1 || htp (torchscript): RuntimeError: no"


@pytest.mark.parametrize(
    ("step", "outcome", "owner"),
    [
        ("built", {"error": "ImportError: X requires the timm library"}, "a library that is not installed"),
        ("built", {"error": "KeyError: 'a'", "unchanged": "KeyError: 'a'"}, "the default configuration of some"),
        ("built", {"error": "KeyError: 'a'", "unchanged": "NotSmallError: 900 M"}, "the sweep's shrinking"),
        ("built", {"error": "NotSmallError: 900 M", "unchanged": "NotSmallError: 900 M"}, "the sweep's limits"),
        ("built", {"error": "TypeError: A.__init__() missing 1 required positional argument"}, "no model by itself"),
        ("forward", {"error": "InputError: no example inputs"}, "the sweep's inputs"),
        ("forward", {"error": "InputError: … NameError: name 'transforms' …"}, "a library that is not installed"),
        ("ours", {"error": GUARD}, "torch"),
        ("ours", {"error": "TimeLimit: timed out after 60 s of CPU time"}, "the sweep's limits"),
        ("ours", {"error": "ContractError: two owners"}, "ours"),
    ],
)
def test_failure_belongs_to(step: str, outcome: dict[str, Any], owner: str) -> None:
    assert whose({"name": "some:model", "source": "some", step: outcome}, step) == owner


def test_export_that_another_exporter_manages_is_ours() -> None:
    assert whose({"ours": {"error": GUARD}, "torchscript": {"value": {}}}, "ours") == "ours"


@pytest.mark.parametrize(
    ("outcome", "exporter", "same", "owner"),
    [
        ("different", "dynamo", True, "torch"),
        ("different", "dynamo", False, "ours"),
        ("load_failed", "transformers", None, "transformers"),
        ("no_kernel", "dynamo", True, "onnxruntime"),
        ("loaded", "dynamo", True, "not run"),
    ],
)
def test_wrong_file_belongs_to(outcome: str, exporter: str, same: bool | None, owner: str) -> None:
    record = {"ours": {"value": {"exporter": exporter, "check": {"outcome": outcome}}}, "same_bytes": {"value": same}}
    assert whose_wrong_file(record) == owner


def swept(name: str, **steps: Any) -> dict[str, Any]:
    ours = {"strategy": "fx", "exporter": "dynamo", "coverage": 1.0, "check": {"outcome": "equal", "says": ""}}
    setup = {"versions": {"torch": "2"}, "commit": "abc", "code": "1", "date": "2026-01-02"}
    return {
        "name": name, "source": "some", "built": {}, "forward": {}, "ours": {"value": ours}, "setup": setup, **steps
    }  # fmt: skip


def test_page_of_ours_alone_says_what_was_not_measured() -> None:
    text = page([swept("a"), swept("b")], {"some": 2})
    assert "| plain `torch.onnx.export` | not measured | not measured |" in text
    assert "| **ours** | 2 of 2 (100%) | 2 of 2 (100%) |" in text
    assert "- No contaminated node, by the value check of the tests: not measured." in text
    assert "Commits: abc (2 models). The code that the sweep runs is the same in all of them." in text


def test_page_says_how_many_states_of_the_code_were_swept() -> None:
    other = swept("b")
    other["setup"]["code"] = "2"
    assert "2 states of the code." in page([swept("a"), other], {"some": 2})


def test_page_says_which_exports_are_of_an_earlier_day() -> None:
    text = page([swept("a", plain={"value": {}, "measured": "2025-12-24"}), swept("b")], {"some": 2})
    assert "| plain `torch.onnx.export` | 1 of 1 (100%) |" in text
    assert "made with the same libraries for an earlier page: 1 on 2025-12-24." in text


def test_models_that_need_a_missing_library_are_counted_apart() -> None:
    missing = {"name": "c", "source": "some", "built": {"error": "ImportError: requires timm"}}
    text = page([swept("a"), missing], {"some": 2})
    assert "| need a library that is not installed | 1 | 1 |" in text
    assert "| built small, of the others | 1 of 1 (100%) |" in text
    assert "- 1 of (a library that is not installed): ImportError: requires timm: `c`" in text
