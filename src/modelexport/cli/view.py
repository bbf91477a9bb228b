"""`modelexport view`: a file as a page in the browser, as a drawing, or for Model Explorer."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modelexport.cli.options import option, parse_axes
from modelexport.cli.output import Output, ReportFile, write_stdout
from modelexport.errors import InputError

if TYPE_CHECKING:
    from modelexport.viewing import View

_PANEL = "What it shows"


class ViewFormat(enum.StrEnum):
    """What is written."""

    HTML = "html"
    SVG = "svg"
    DOT = "dot"
    MODEL_EXPLORER = "model-explorer"


def view(
    *,
    file: Annotated[
        Path, typer.Argument(help="An ONNX file of modelexport, or of torch's exporters.", show_default=False)
    ],
    profile: Annotated[
        Path | None, option(_PANEL, "The JSON of modelexport profile: time, memory, execution provider.")
    ] = None,
    verify: Annotated[Path | None, option(_PANEL, "The JSON of modelexport verify: errors and verdicts.")] = None,
    compare: Annotated[Path | None, option(_PANEL, "Another ONNX file: show what changed from it to FILE.")] = None,
    axis: Annotated[
        list[str] | None, option(_PANEL, "The size of a dynamic axis, to count FLOPs, as batch=8; repeat for more.")
    ] = None,
    private: Annotated[bool, option(_PANEL, "Leave out source lines.", "--private")] = False,
    level: Annotated[
        str | None,
        option(_PANEL, "For svg and dot: the call whose level is drawn, by default the root.", metavar="CALL"),
    ] = None,
    output_format: Annotated[
        ViewFormat | None, option("Output", "By default html, or by the file extension of -o.", "--format")
    ] = None,
    no_open: Annotated[bool, option("Output", "Do not open the page in a browser.", "--no-open")] = False,
    report: ReportFile,
    out: Output,
) -> None:
    """Show a file in the browser: modules first, nodes on demand, with everything that is known about them.

    The page is one HTML file that needs no network. It shows the graph by module, a map of sizes, a tree and a table;
    reports of profile, verify and compare are laid over them. On a terminal it is opened in the default browser;
    without -o it is written to a temporary folder, and its path is printed. svg and dot draw one level for documents;
    model-explorer writes the graph JSON of Google's Model Explorer, and beside it a file of node data for each overlay.

    Examples:

        modelexport view model.onnx

        modelexport view model.onnx -o page.html --no-open --profile model-profile.json

        modelexport view model.onnx -o layer.svg --level encoder.layer.0
    """
    from modelexport.viewing import FORMATS
    from modelexport.viewing import view as build_view

    form = _format(output_format, report.output, FORMATS)
    opens = form is ViewFormat.HTML and not no_open and sys.stdout.isatty()
    if level is not None and form not in (ViewFormat.SVG, ViewFormat.DOT):
        raise InputError("--level is for --format svg and --format dot: a page shows every level")
    report.check(*(path for path in (file, profile, verify, compare) if path is not None))
    with out.working(f"reading {file}"):
        found = build_view(
            file, profile=profile, verification=verify, compare=compare, axes=parse_axes(axis or []), private=private
        )
    for note in found.data.notes:
        out.note(f"note: {note}")
    beside = _node_data(found, report) if form is ViewFormat.MODEL_EXPLORER else []
    if form is ViewFormat.HTML and report.output is None:
        write_stdout(f"{found.save_temporarily()}\n")
    else:
        report.write(found.text(form.value, level or ""), out)
        found.path = report.output
    for node_data, text in beside:
        node_data.write(text, out)
    if opens and not found.open():
        out.note("note: no browser could be started; open the page yourself")


def _format(given: ViewFormat | None, output: Path | None, formats: dict[str, str]) -> ViewFormat:
    if given is not None or output is None:
        return given or ViewFormat.HTML
    name = formats.get(output.suffix.lower())
    if name is None:
        raise InputError(f"{output}: unknown file extension. Use {', '.join(formats)}, or give --format.")
    return ViewFormat(name)


def _node_data(found: View, report: ReportFile) -> list[tuple[ReportFile, str]]:
    """The files of node data beside the graph, as model_flops.json, each checked, with their texts."""
    if report.output is None:
        return []
    files = []
    for name, text in found.model_explorer_node_data().items():
        beside = ReportFile(report.output.with_name(f"{report.output.stem}_{name}.json"), report.force)
        beside.check()
        files.append((beside, text))
    return files
