"""The page: names of a file survive as data, and nothing of them is markup."""

from __future__ import annotations

import html.parser
from pathlib import Path

import pytest
from onnx import helper
from tests.support.page_reading import call_ids, data_of, texts
from tests.support.scoped_models import saved, scoped, stack

import modelexport

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(2)//",
    "<!--",
    "-->]]>",
    "\u2028alert(3)\u2029",
    "\u202egnp.exe",
    "x" * 10_000,
    "__proto__",
    "constructor",
    "__MODEL_DATA__",
    "__MODEL_TITLE__",
    "\"\\'&amp;",
    "${alert(4)}",
]


class Elements(html.parser.HTMLParser):
    """The elements of a page, and the text of its title."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.names: list[str] = []
        self.title = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)

    def handle_data(self, data: str) -> None:
        if self.names and self.names[-1] == "title" and not self.title:
            self.title = data


def hostile_model(folder: Path) -> Path:
    nodes, value = [], "x"
    for number, name in enumerate(HOSTILE):
        output = f"{name}:{number}"
        node = helper.make_node("Relu", [value], [output], name=name, doc_string=name)
        nodes.append(scoped(node, f"layers.{number}", f"models.{name.replace('.', '')}"))
        value = output
    return saved(stack([nodes]), folder / "<b>model&.onnx")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_model(tmp_path_factory.mktemp("hostile"))


def test_names_are_in_the_data_as_they_are_in_the_file(path: Path) -> None:
    data = data_of(modelexport.view(path).html)
    assert texts(data, data["nodes"]["name"]) == HOSTILE
    assert texts(data, data["nodes"]["id"]) == [f"{name}:{number}" for number, name in enumerate(HOSTILE)]
    assert call_ids(data) == ["", *(f"layers.{number}" for number in range(len(HOSTILE)))]


def test_names_add_no_element_to_the_page(path: Path, tmp_path: Path) -> None:
    plain = saved(stack([[scoped(helper.make_node("Relu", ["x"], ["y"]), "a", "models.A")]]), tmp_path / "m.onnx")
    page = modelexport.view(path).html
    found = Elements(page)
    assert found.names == Elements(modelexport.view(plain).html).names
    assert found.title == "<b>model&.onnx"
    data = page.partition('id="model-data">')[2].partition("</script>")[0]
    assert not set("<>&\u2028\u2029") & set(data)


def test_drawings_escape_names(path: Path) -> None:
    shown = modelexport.view(path)
    drawing = shown.svg() + "".join(shown.svg(f"layers.{number}") for number in range(len(HOSTILE)))
    assert set(Elements(drawing).names) <= {"svg", "title", "style", "text", "g", "rect", "path", "polygon"}
    assert "\u202e" not in drawing
    assert "alert(1)</" not in drawing.replace("&lt;/", "")
    dot = shown.dot()
    assert max(map(len, dot.splitlines())) < 40_000
    assert all(line.count('"') - line.count('\\"') in (0, 2, 4, 6, 8) for line in dot.splitlines())


def test_page_in_a_notebook_is_in_a_frame_without_access_to_it(path: Path) -> None:
    shown = modelexport.view(path)
    frame = shown._repr_html_()
    parsed = Elements(frame)
    assert parsed.names == ["iframe"]
    assert 'sandbox="allow-scripts"' in frame
    assert "allow-same-origin" not in frame


def test_page_refers_to_no_other_file(path: Path) -> None:
    page = modelexport.view(path).html
    head = page.partition('id="model-data">')[0]
    assert "Content-Security-Policy" in head
    assert "default-src 'none'" in head
