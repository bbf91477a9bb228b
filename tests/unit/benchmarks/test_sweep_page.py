"""The page of the sweep says which rules found the inputs of its models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks.sweep_candidates import Candidate
from benchmarks.sweep_page import page, rule_table
from benchmarks.sweep_steps import build_with_inputs

from modelexport.sources.inputs.synthesis.repairs import REPAIRS


def test_rules_that_found_the_inputs_of_a_model_are_on_the_page() -> None:
    pytest.importorskip("transformers")
    record: dict[str, Any] = {"name": "transformers:clip", "source": "transformers"}
    assert build_with_inputs(Candidate("transformers", "clip"), record) is not None
    assert record["forward"]["rules"] == ("dummy_inputs", "add_named_arguments")
    text = page([record], {"transformers": 1})
    for row in (
        "| first proposal | `dummy_inputs` | 1 |",
        "| guess of an argument | `image` | 1 |",
        "| repair | `add_named_arguments` | 1 |",
    ):
        assert row in text


def test_rule_that_is_used_twice_wins_one_model() -> None:
    forward = {"rules": ["signature", "match_operands", "match_operands"], "guesses": {"a": "image", "b": "image"}}
    assert rule_table([{"forward": forward}, {"forward": {"error": "no"}}, {}]) == [
        "| | rule | models |",
        "|---|---|---|",
        "| first proposal | `signature` | 1 |",
        "| guess of an argument | `image` | 1 |",
        "| repair | `match_operands` | 1 |",
    ]


def test_repairs_on_the_page_are_those_of_the_search() -> None:
    text = Path(__file__).parents[3].joinpath("docs/measurements/sweep.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\| repair \| `(\w+)` \|", text)) == {rule.__name__ for _, rule in REPAIRS}


def test_share_of_nearly_all_models_is_not_rounded_to_all() -> None:
    records = [{"name": f"m{n}", "source": "timm", "built": {} if n else {"error": "no"}} for n in range(237)]
    assert "(100%)" not in page(records, {"timm": 237}).partition("built small")[2].partition("\n")[0]
