"""The page of a model in a browser: levels, search, map, overlays, permalinks and keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from tests.browser.conftest import Opener

import modelexport

pytestmark = pytest.mark.integration

Pages = Callable[[str], Path]
ATTENTION = "encoder.layer.0.attention.self"
TO_ATTENTION = ("encoder", "encoder.layer.0", "encoder.layer.0.attention", ATTENTION)


def opened_levels(*calls: str) -> str:
    """The fragment in which these calls are open."""
    return "open=" + ",".join(f"c%253A{call}" for call in calls)


@pytest.fixture(scope="session")
def bert(exported: Callable[..., Any]) -> modelexport.HierarchyDocument:
    document: modelexport.HierarchyDocument = exported("bert").document
    return document


def test_page_opens_with_the_outermost_calls(open_page: Opener, page_of: Pages) -> None:
    opened = open_page(page_of("bert"))
    expect(opened.page).to_have_title("bert.onnx")
    expect(opened.box("c:embeddings")).to_have_attribute("aria-expanded", "false")
    assert "bert.onnx" in opened.details()
    opened.screenshot("graph")


def test_levels_open_down_to_a_node(open_page: Opener, page_of: Pages, bert: modelexport.HierarchyDocument) -> None:
    opened = open_page(page_of("bert"), "open=")
    for call in ("encoder", "encoder.layer.0", "encoder.layer.0.intermediate", "encoder.layer.0.intermediate.dense"):
        if opened.box(f"c:{call}").count() == 0:
            opened.toggle("r:encoder.layer.0")  # equal layers are one stack
        opened.toggle(f"c:{call}")
    node = next(node for node in bert.nodes if node.module == "encoder.layer.0.intermediate.dense")
    opened.box(f"n:{node.id}").dispatch_event("click")
    details = opened.details()
    assert all(text in details for text in (node.op, node.id, node.module, node.kind, node.reason))
    opened.screenshot("graph-node")


def test_an_open_call_shows_its_arguments(
    open_page: Opener, page_of: Pages, bert: modelexport.HierarchyDocument
) -> None:
    opened = open_page(page_of("bert"), opened_levels("encoder"))
    call = next(call for call in bert.calls if call.id == "encoder")
    shown = opened.page.locator("g.pill text").all_text_contents()
    assert {port.name for port in call.inputs if port.tensor} <= set(shown)


def test_boxes_of_a_level_are_below_its_heading_and_its_arguments(open_page: Opener, page_of: Pages) -> None:
    opened = open_page(page_of("bert"), opened_levels("embeddings"))
    heading = opened.box("c:embeddings").locator(".band").bounding_box()
    inner = opened.page.locator('g.box[data-key^="c:embeddings."] .frame, g.box.node.depth1 .frame').all()
    assert heading is not None
    assert len(inner) > 3
    for frame in inner:
        box = frame.bounding_box()
        assert box is not None
        assert box["y"] >= heading["y"] + heading["height"]


def test_closed_level_is_not_drawn(open_page: Opener, page_of: Pages) -> None:
    opened = open_page(page_of("bert"), opened_levels(*TO_ATTENTION))
    expect(opened.box(f"c:{ATTENTION}.query")).to_have_count(1)
    opened.toggle("c:encoder")
    expect(opened.box(f"c:{ATTENTION}.query")).to_have_count(0)


def test_subgraphs_open_like_modules(open_page: Opener, page_of: Pages, exported: Callable[..., Any]) -> None:
    opened = open_page(page_of("cond"), "open=")
    branch = next(node for node in exported("cond").document.nodes if node.op == "If")
    opened.toggle(f"n:{branch.id}")
    titles = opened.page.locator("g.box.graph .title").all_text_contents()
    assert titles == ["then_branch", "else_branch"]


def test_search_finds_what_the_selector_selects(
    open_page: Opener, page_of: Pages, bert: modelexport.HierarchyDocument
) -> None:
    selector = "op:MatMul and encoder.layer.0"
    expected = modelexport.select_nodes(bert, selector)
    opened = open_page(page_of("bert"), opened_levels(*TO_ATTENTION))
    opened.search(selector)
    expect(opened.page.locator(".search-status")).to_have_text(str(len(expected)))
    drawn = opened.page.locator("g.box.hit")
    assert {drawn.nth(i).get_attribute("data-key") for i in range(drawn.count())} <= {
        f"n:{node.id}" for node in expected
    }
    opened.page.keyboard.press("Enter")  # the first result
    assert expected[0].id in opened.details()
    expect(opened.page.locator(".search-status")).to_have_text(f"1 of {len(expected)}")
    opened.screenshot("search")


def test_error_of_a_selector_is_shown_inline(
    open_page: Opener, page_of: Pages, bert: modelexport.HierarchyDocument
) -> None:
    selector = "kind:wrong"
    with pytest.raises(modelexport.SelectorError) as raised:
        modelexport.select_nodes(bert, selector)
    opened = open_page(page_of("bert"))
    opened.search(selector)
    expect(opened.page.locator(".search-error")).to_have_text(str(raised.value))
    expect(opened.page.locator("#search")).to_have_attribute("aria-invalid", "true")


def test_search_finds_tensors_by_a_part_of_the_name(open_page: Opener, page_of: Pages) -> None:
    opened = open_page(page_of("bert"))
    opened.search("LayerNorm.weight")
    expect(opened.page.locator(".option .what", has_text="tensor").first).to_be_visible()


def test_click_on_a_cell_zooms_the_map_and_selects(open_page: Opener, page_of: Pages) -> None:
    opened = open_page(page_of("bert"), "view=map")
    cell = opened.page.locator('g.cell[data-call="encoder"]')
    width = cell.locator("rect").bounding_box()
    cell.dispatch_event("click")
    expect(opened.page.locator(".crumb[aria-current]")).to_have_text("encoder")
    assert opened.page.locator('g.cell[data-call="embeddings"]').count() == 0
    zoomed = opened.page.locator('g.cell[data-call="encoder"] rect').bounding_box()
    assert width is not None
    assert zoomed is not None
    assert zoomed["height"] >= width["height"]
    assert "BertEncoder" in opened.details()
    expect(opened.page.locator(".tree-row.selected .name")).to_have_text("encoder")
    opened.screenshot("map")
    opened.page.locator(".crumb").first.click()
    expect(opened.page.locator('g.cell[data-call="embeddings"]')).to_have_count(1)


def test_map_is_sized_by_nodes_or_parameters(open_page: Opener, page_of: Pages, exported: Callable[..., Any]) -> None:
    opened = open_page(page_of("bert"), "view=map&size=parameters&map=treemap")
    total = sum(parameter.numel() for parameter in exported("bert").example.model.parameters())
    opened.page.locator("g.cell").first.hover(position={"x": 4, "y": 4})
    expect(opened.page.locator("#tooltip")).to_contain_text("Parameters")
    opened.page.select_option("#size", "nodes")
    assert "size=" not in opened.fragment()
    opened.page.keyboard.press("Escape")
    assert f"{total:,}" in opened.details()


def test_overlay_colours_boxes_and_shows_values_and_a_legend(open_page: Opener, page_of: Pages) -> None:
    opened = open_page(page_of("bert"))
    frame = opened.box("c:embeddings").locator(".frame")
    plain = frame.evaluate("element => getComputedStyle(element).fill")
    expect(opened.page.locator("#legend")).to_be_hidden()
    opened.page.select_option("#overlay", "confidence")
    expect(opened.box("c:embeddings").locator(".value")).to_contain_text("%")
    expect(opened.page.locator("#legend .legend-title")).to_be_visible()
    assert frame.evaluate("element => getComputedStyle(element).fill") != plain
    opened.page.select_option("#overlay", "kind")
    expect(opened.page.locator("#legend .legend-entry").first).to_have_text("exact")
    opened.screenshot("overlay")


def test_permalink_restores_the_state(open_page: Opener, page_of: Pages) -> None:
    first = open_page(page_of("bert"))
    first.toggle("c:embeddings")
    first.box("c:embeddings.LayerNorm").dispatch_event("click")
    first.page.select_option("#overlay", "kind")
    first.search("class:Linear")
    boxes = first.page.locator("g.box").evaluate_all("all => all.map((box) => box.dataset.key)")
    again = open_page(page_of("bert"), first.fragment().removeprefix("#"))
    assert again.page.locator("g.box").evaluate_all("all => all.map((box) => box.dataset.key)") == boxes
    expect(again.box("c:embeddings.LayerNorm")).to_have_attribute("aria-pressed", "true")
    expect(again.page.locator("#overlay")).to_have_value("kind")
    expect(again.page.locator("#search")).to_have_value("class:Linear")


@pytest.mark.parametrize(
    "fragment",
    [
        "%",
        "open=%25%25,c%3Anowhere,&select=c:nowhere&overlay=none&size=x&view=y&zoom=z&in=q&map=5",
        "select=__proto__&open=__proto__&overlay=__proto__",
        "search=" + "(" * 2000,
        "select=n:&view=map&in=__proto__",
    ],
)
def test_garbage_in_the_fragment_is_ignored(open_page: Opener, page_of: Pages, fragment: str) -> None:
    opened = open_page(page_of("bert"), fragment)
    assert opened.page.locator("g.box, g.cell").count() > 0


def test_fragment_that_changes_is_followed(open_page: Opener, page_of: Pages) -> None:
    opened = open_page(page_of("bert"))
    opened.page.evaluate("location.hash = 'view=table&select=c:encoder'")
    expect(opened.page.locator("#panel-table")).to_be_visible()
    assert "BertEncoder" in opened.details()
    opened.page.go_back()
    expect(opened.page.locator("#panel-graph")).to_be_visible()


def test_everything_is_reached_with_the_keyboard(open_page: Opener, page_of: Pages) -> None:
    opened = open_page(page_of("bert"), "open=")
    keys = opened.page.keyboard
    keys.press("e")  # the tree
    for key in ("Home", "ArrowDown", "ArrowDown", "Enter"):
        keys.press(key)
    assert opened.page.locator(".tree-row.selected .name").inner_text() in opened.details()
    keys.press("g")  # the graph
    focused = opened.page.locator("g.box:focus")
    expect(focused).to_have_count(1)
    for _ in range(20):
        if focused.get_attribute("data-key") == "c:encoder":
            break
        keys.press("ArrowDown")
    keys.press("Enter")
    expect(opened.box("c:encoder")).to_have_attribute("aria-expanded", "true")
    expect(focused).to_have_attribute("data-key", "c:encoder")
    keys.press("o")
    assert "overlay=" in opened.fragment()
    keys.press("m")  # the map
    keys.press("ArrowRight")
    keys.press("Enter")
    assert "select=" in opened.fragment()
    keys.press("t")  # the table
    keys.press("End")
    keys.press("Enter")
    expect(opened.page.locator(".table-row.selected")).to_be_visible()
    keys.press("/")
    keys.type("op:Gemm or op:MatMul")
    keys.press("Enter")
    keys.press("Escape")  # clears the query
    keys.press("Escape")  # leaves the field
    keys.press("?")
    expect(opened.page.locator("#help")).to_be_visible()
    keys.press("Escape")
    expect(opened.page.locator("#help")).to_be_hidden()


def test_table_has_the_columns_of_analyze_and_is_sorted(
    open_page: Opener, page_of: Pages, bert: modelexport.HierarchyDocument
) -> None:
    opened = open_page(page_of("bert"), "view=table")
    heads = opened.page.locator(".table-row.head button").all_inner_texts()
    assert [head.lower() for head in heads] == [
        "path", "class", "calls", "own nodes", "nodes", "parameters", "bytes", "confidence", "kinds",
    ]  # fmt: skip
    opened.page.locator(".table-row.head button", has_text="Own nodes").click()
    rows = opened.page.locator(".table-body .table-row")
    own = [int(rows.nth(i).locator(".cell").nth(3).inner_text()) for i in range(8)]
    assert own == sorted(own, reverse=True)
    counts = {module.path: 0 for module in bert.modules}
    paths = {call.id: call.path for call in bert.calls}
    for node in bert.nodes:
        counts[paths[node.module]] += 1
    assert own[0] == max(counts.values())
    opened.search("class:LayerNorm")
    expect(opened.page.locator(".table-status")).to_contain_text(f"of {len(bert.modules)} modules")
    opened.screenshot("table")


@pytest.mark.parametrize("dark", [False, True])
def test_page_works_on_a_narrow_screen(open_page: Opener, page_of: Pages, dark: bool) -> None:
    opened = open_page(page_of("bert"), width=390, height=844, dark=dark)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
    opened.page.click("#tab-tree")
    opened.page.locator(".tree-row", has_text="BertEncoder").first.click()
    expect(opened.page.locator("#details-pane")).to_be_visible()
    assert "BertEncoder" in opened.details()
    opened.screenshot(f"narrow-{'dark' if dark else 'light'}")
    opened.page.click("#close-details button")
    expect(opened.page.locator("#details-pane")).to_be_hidden()
    for tab in ("map", "table", "graph"):
        opened.page.click(f"#tab-{tab}")
        expect(opened.page.locator(f"#panel-{tab}")).to_be_visible()


def test_theme_follows_the_system_and_can_be_changed(open_page: Opener, page_of: Pages) -> None:
    opened = open_page(page_of("bert"), dark=True)
    assert opened.page.evaluate("document.documentElement.dataset.theme") == "dark"
    opened.page.get_by_label("Light or dark").click()
    assert opened.page.evaluate("document.documentElement.dataset.theme") == "light"


def test_printing_shows_the_whole_graph(open_page: Opener, page_of: Pages) -> None:
    opened = open_page(page_of("bert"), opened_levels(*TO_ATTENTION))
    opened.page.emulate_media(media="print")
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    _, _, width, height = map(float, str(opened.page.locator("svg.graph").get_attribute("viewBox")).split())
    bounds = opened.page.evaluate(
        "(() => { const box = document.querySelector('g.drawing').getBBox(); return [box.width, box.height] })()"
    )
    assert width >= bounds[0]
    assert height >= bounds[1]
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert opened.page.locator("svg.graph").get_attribute("viewBox") is None


def test_page_runs_in_the_frame_of_a_notebook(
    open_page: Opener, page_of: Pages, exported: Callable[..., Any], tmp_path: Path
) -> None:
    notebook = tmp_path / "notebook.html"
    frame = modelexport.view(exported("bert").path)._repr_html_()
    notebook.write_text(f"<!doctype html><html data-ready>{frame}", encoding="utf-8")
    opened = open_page(notebook)
    inside = opened.page.frame_locator("iframe")
    inside.locator("g.box").first.wait_for()
    inside.locator("#tab-map").click()
    expect(inside.locator("g.cell").first).to_be_visible()
