"""The flame graph of a profile in a terminal: a line for each level of calls, as wide as their time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelexport.cli.output import rendered
from modelexport.display import printable

if TYPE_CHECKING:
    from rich.text import Text

    from modelexport.profiling import CallProfile, ProfileReport

_WIDTH_ELSEWHERE = 100
_MOST_LINES = 8
_STYLES = ("black on bright_yellow", "black on yellow", "black on bright_red", "black on bright_magenta")


def flame_graph(report: ProfileReport, width: int) -> str:
    """The total time of calls, the root call first; the space that it leaves is the overhead of the runtime."""
    cells = min(width, _WIDTH_ELSEWHERE)
    inside: dict[str | None, list[CallProfile]] = {}
    for call in report.calls:
        inside.setdefault(call.parent, []).append(call)
    scale = cells / report.session.mean if report.session.mean else 0.0
    level = [(call, 0.0) for call in inside.get(None, ())]
    lines: list[Text] = []
    while level and len(lines) < _MOST_LINES:
        line = _line(level, scale, len(lines))
        if not line.plain.strip():
            break
        lines.append(line)
        following: list[tuple[CallProfile, float]] = []
        for call, start in level:
            for callee in inside.get(call.id, ()):
                following.append((callee, start))
                start += callee.total.mean
        level = following
    return "".join(rendered(line, cells) for line in lines)


def _line(level: list[tuple[CallProfile, float]], scale: float, depth: int) -> Text:
    from rich.text import Text

    line = Text(no_wrap=True, overflow="crop")
    for number, (call, start) in enumerate(level):
        first, last = round(start * scale), round((start + call.total.mean) * scale)
        if last <= first:
            continue
        line.append(" " * (first - len(line.plain)))
        name = call.path.rpartition(".")[2] or call.class_name
        label = f"|{printable(name)} {call.total_share:.0%}"
        line.append(label[: last - first].ljust(last - first), style=_STYLES[(depth + number) % len(_STYLES)])
    return line
