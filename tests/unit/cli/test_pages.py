"""Tables for terminals: columns are counted as a terminal shows them."""

from __future__ import annotations

from rich.cells import cell_len

from modelexport.cli.pages import Section, as_text


def test_characters_of_two_columns_count_as_two() -> None:
    rows = (("编码器.层", 12), ("layer", 3))
    text = as_text("", [Section("", (), ("module", "nodes"), rows)], width=80)
    assert {cell_len(line) for line in text.splitlines()} == {cell_len("编码器.层") + 2 + len("nodes")}


def test_table_with_characters_of_two_columns_fits_the_width() -> None:
    rows = (("编" * 30, "码" * 20),)
    text = as_text("", [Section("", (), ("module", "tag"), rows)], width=80)
    assert max(map(cell_len, text.splitlines())) <= 80
