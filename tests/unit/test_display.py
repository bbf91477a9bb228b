"""How results show themselves: short in a repr, as tables in a notebook, and harmless in both."""

from __future__ import annotations

import html.parser
from pathlib import Path

import msgspec
import pytest
import torch
from tests.conftest import Exporter

import modelexport
from modelexport.display import counted, printable

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e"


@pytest.mark.xdist_group("bert")
def test_results_have_a_repr_of_one_line_and_html_for_notebooks(exported: Exporter, tmp_path: Path) -> None:
    ours = exported("bert")
    copy = modelexport.retag(ours.path, ours.path, tmp_path / "copy.onnx")
    model, inputs = ours.example.model, ours.example.inputs
    results = [
        ours.result,
        ours.document,
        modelexport.load(ours.path),
        modelexport.read_model(ours.path),
        modelexport.analyze(ours.path),
        modelexport.validate(ours.path),
        modelexport.compare_models(ours.path, ours.path),
        modelexport.select(ours.path, "class:LayerNorm"),
        modelexport.verify_modules(ours.path, model, inputs, select="pooler"),
        modelexport.extract_modules(ours.path, "class:BertLayer", tmp_path / "layers"),
        modelexport.repair(tmp_path / "copy.onnx", overwrite=True),
        copy,
    ]
    for result in results:
        text, page = repr(result), result._repr_html_()
        assert text.startswith(f"{type(result).__name__}(")
        assert "\n" not in text
        assert len(text) < 700
        assert type(result).__name__ in page
        assert len(page) < 20_000
    assert f"nodes={len(ours.document.nodes)}" in repr(ours.result)


class Elements(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)


@pytest.mark.xdist_group("bert")
def test_names_from_a_file_are_harmless(exported: Exporter) -> None:
    document = exported("bert").document
    calls = tuple(msgspec.structs.replace(call, tag=HOSTILE) for call in document.calls)
    spoiled = msgspec.structs.replace(document, calls=calls, strategy=HOSTILE)
    page = spoiled._repr_html_()
    assert Elements(page).names <= {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert "&lt;script&gt;" in page
    assert not {"\x1b", "\u202e"} & set(page + repr(spoiled))


@pytest.mark.parametrize("character", ["\x1b", "\x07", "\x9b", "\n", "\u2028", "\u202e", "\u2066", "\u200f"])
def test_characters_that_control_or_disguise_text_are_replaced(character: str) -> None:
    assert printable(f"a{character}b") == "a\N{REPLACEMENT CHARACTER}b"


def test_letters_of_any_language_stay() -> None:
    assert printable("größe_層_слой") == "größe_層_слой"


def test_one_is_singular() -> None:
    assert [counted(number, "node") for number in (0, 1, 2, 1000)] == ["0 nodes", "1 node", "2 nodes", "1,000 nodes"]


def test_inputs_are_chosen_in_the_order_of_the_command_line(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    sourced = modelexport.SourcedModel(model, (torch.zeros(5, 3),))
    given = modelexport.choose_inputs(sourced, shapes=["input=4x3"])
    assert (given.inputs["input"].shape, given.notes) == ((4, 3), ())
    assert modelexport.choose_inputs(sourced).inputs[0].shape == (5, 3)
    synthesized = modelexport.choose_inputs(model)
    assert synthesized.notes[0].startswith("inputs synthesized: ")
    result = modelexport.export_model(model, synthesized.inputs, tmp_path / "linear.onnx")
    assert result.coverage == 1.0
    with pytest.raises(modelexport.InputError, match="Linear has no tokenizer or processor"):
        modelexport.choose_inputs(model, texts=["a cat"])


def test_existing_file_is_replaced_only_where_that_is_asked_for(tmp_path: Path) -> None:
    model, inputs, path = torch.nn.Linear(3, 2), torch.zeros(1, 3), tmp_path / "linear.onnx"
    modelexport.export_model(model, inputs, path)
    before = path.stat().st_mtime_ns
    with pytest.raises(modelexport.InputError, match="overwrite=True in Python"):
        modelexport.export_model(model, inputs, path)
    assert path.stat().st_mtime_ns == before
    modelexport.export_model(model, inputs, path, overwrite=True)
    assert path.stat().st_mtime_ns > before
