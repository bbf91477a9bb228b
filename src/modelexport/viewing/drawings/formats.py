"""Drawings of one level for documents: SVG, and the DOT language of Graphviz."""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence

from modelexport.display import shortened
from modelexport.viewing.drawings.layered_layout import Point, Size, lay_out
from modelexport.viewing.drawings.level_graph import Box, Edge, Level

_LINE, _LABEL_LINE, _PADDING, _MARGIN = 16.0, 14.0, 10.0, 24.0
_TITLE_WIDTH, _TEXT_WIDTH, _LABEL_WIDTH = 8.6, 7.0, 6.4
_TITLE_ROOM = 34.0
_MOST_CHARACTERS = 80
_STYLE = """
text { font: 12px system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; fill: #1b1f24; text-anchor: middle; }
.title { font-weight: 600; font-size: 13px; }
.heading { font-weight: 600; font-size: 15px; text-anchor: start; }
.label { font-size: 11px; fill: #4a5561; } .under { fill: #fff; }
.box { fill: #fff; stroke: #6b7683; }
.call { fill: #e6eefc; stroke: #2f5fb3; } .calls { fill: #e6eefc; stroke: #2f5fb3; stroke-width: 2; }
.node { fill: #f4f5f7; stroke: #8a94a0; }
.input { fill: #e7f5ec; stroke: #2c7a4b; } .output { fill: #fdf0e3; stroke: #a85b12; }
.edge { fill: none; stroke: #5b6672; stroke-width: 1.3; } .head { fill: #5b6672; }
@media (prefers-color-scheme: dark) {
  svg { background: #14181d; } text { fill: #dde3ea; } .label { fill: #aab4bf; } .under { fill: #14181d; }
  .call, .calls { fill: #1d2b47; stroke: #7ea6ea; } .node { fill: #222932; stroke: #77828e; }
  .input { fill: #17301f; stroke: #6fbf8d; } .output { fill: #38260f; stroke: #dd9a52; }
  .edge { stroke: #96a1ad; } .head { fill: #96a1ad; }
}
"""
_DOT_STYLES = {
    "call": 'fillcolor="#e6eefc", color="#2f5fb3"',
    "calls": 'fillcolor="#e6eefc", color="#2f5fb3", peripheries=2',
    "node": 'fillcolor="#f4f5f7", color="#8a94a0"',
    "input": 'fillcolor="#e7f5ec", color="#2c7a4b"',
    "output": 'fillcolor="#fdf0e3", color="#a85b12"',
}


def as_dot(level: Level) -> str:
    """A level in the DOT language: ``dot -Tpdf`` lays it out."""
    lines = [
        "digraph level {",
        f"  label={_quoted([level.title])}; labelloc=t; labeljust=l; fontname=Helvetica;",
        '  node [shape=box, style="rounded,filled", fontname=Helvetica, fontsize=11];',
        "  edge [fontname=Helvetica, fontsize=9];",
    ]
    lines += [f"  {box.id} [label={_quoted([box.title, *box.lines])}, {_DOT_STYLES[box.kind]}];" for box in level.boxes]
    for edge in level.edges:
        source, target = level.boxes[edge.source].id, level.boxes[edge.target].id
        lines.append(f"  {source} -> {target}{f' [label={_quoted(edge.lines)}]' if edge.lines else ''};")
    return "".join(f"{line}\n" for line in [*lines, "}"])


def _quoted(lines: Sequence[str]) -> str:
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(escaped) + '"'


def as_svg(level: Level) -> str:
    """A level as a self-contained SVG file, in the colours of the reader's system."""
    texts = [_box_lines(box) for box in level.boxes]
    sizes = [_box_size(lines) for lines in texts]
    labels = [tuple(shortened(line, _MOST_CHARACTERS) for line in edge.lines) for edge in level.edges]
    areas = [
        (max((len(line) for line in lines), default=0) * _LABEL_WIDTH, len(lines) * _LABEL_LINE) for lines in labels
    ]
    found = lay_out(sizes, [(edge.source, edge.target) for edge in level.edges], areas)
    placed = [(x + _MARGIN, y + _MARGIN + _TITLE_ROOM) for x, y in found.centres]
    shapes: list[str] = []
    captions: list[str] = []
    for edge, route, lines, area in zip(level.edges, found.routes, labels, areas, strict=True):
        points = [(x + _MARGIN, y + _MARGIN + _TITLE_ROOM) for x, y in route]
        shapes.append(_edge_shape(edge, points, sizes))
        (x, y), (width, height) = points[1], area
        if lines:
            place = f'x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" height="{height:.1f}"'
            captions.append(f'<rect class="under" {place}/>')
        for number, line in enumerate(lines):
            top = y + (number - len(lines) / 2 + 0.78) * _LABEL_LINE
            captions.append(f'<text class="label" x="{x:.1f}" y="{top:.1f}">{_text(line)}</text>')
    boxes = [_box_shape(b, c, s, t) for b, c, s, t in zip(level.boxes, placed, sizes, texts, strict=True)]
    title = shortened(level.title, _MOST_CHARACTERS)
    width = max(found.width, len(title) * 9.0) + 2 * _MARGIN
    height = found.height + 2 * _MARGIN + _TITLE_ROOM
    heading = f'<text class="heading" x="{_MARGIN}" y="{_MARGIN + 10}">{_text(title)}</text>'
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{_text(level.title)}</title>",
        f"<style>{_STYLE}</style>",
        heading,
        *shapes,
        *boxes,
        *captions,
        "</svg>",
    ]
    return "".join(f"{part}\n" for part in parts)


def _box_lines(box: Box) -> list[str]:
    return [shortened(line, _MOST_CHARACTERS) for line in (box.title, *box.lines)]


def _box_size(lines: Sequence[str]) -> Size:
    width = max(len(line) * (_TEXT_WIDTH if number else _TITLE_WIDTH) for number, line in enumerate(lines))
    return width + 2 * _PADDING, len(lines) * _LINE + _PADDING


def _box_shape(box: Box, centre: Point, size: Size, lines: Sequence[str]) -> str:
    (x, y), (width, height) = centre, size
    corner = height / 2 if box.kind in ("input", "output") else 6
    place = f'x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" height="{height:.1f}"'
    hint = _text(" · ".join((box.title, *box.lines)))
    parts = [f'<g><title>{hint}</title><rect class="box {box.kind}" {place} rx="{corner:.1f}"/>']
    for number, line in enumerate(lines):
        kind = "" if number else ' class="title"'
        top = y - height / 2 + _PADDING / 2 + number * _LINE + _LINE - 4
        parts.append(f'<text{kind} x="{x:.1f}" y="{top:.1f}">{_text(line)}</text>')
    return "".join([*parts, "</g>"])


def _edge_shape(edge: Edge, points: Sequence[Point], sizes: Sequence[Size]) -> str:
    """A smooth line from the lower side of one box to the upper side of another."""
    (x, y), (end_x, end_y) = points[0], points[-1]
    start, end = y + sizes[edge.source][1] / 2, end_y - sizes[edge.target][1] / 2
    through = [(x, start), *points[1:-1], (end_x, end - 7)]
    path = f"M{x:.1f},{start:.1f}"
    for (a, b), (c, d) in itertools.pairwise(through):
        middle = (b + d) / 2
        path += f" C{a:.1f},{middle:.1f} {c:.1f},{middle:.1f} {c:.1f},{d:.1f}"
    head = f"{end_x - 4:.1f},{end - 8:.1f} {end_x + 4:.1f},{end - 8:.1f} {end_x:.1f},{end:.1f}"
    return f'<path class="edge" d="{path}"/><polygon class="head" points="{head}"/>'


def _text(text: str) -> str:
    return html.escape(text)
