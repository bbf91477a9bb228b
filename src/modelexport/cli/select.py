"""`modelexport select`: the nodes that a selector picks, in the formats of other tools."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from modelexport.cli.options import SELECTOR_HELP
from modelexport.cli.output import Output, ReportFile, format_option, json_text
from modelexport.display import counted, printable
from modelexport.errors import InputError

if TYPE_CHECKING:
    from modelexport.analysis.query import Selection


class SelectionFormat(enum.StrEnum):
    """The formats of a selection."""

    HUMAN = "human"
    JSON = "json"
    ORT_EXCLUDE = "ort-exclude"
    ORT_BLOCK_LIST = "ort-block-list"
    OLIVE = "olive"
    NNCF = "nncf"


# The argument of each tool for the names of nodes.
_ARGUMENTS = {
    SelectionFormat.ORT_EXCLUDE: "nodes_to_exclude",
    SelectionFormat.ORT_BLOCK_LIST: "node_block_list",
    SelectionFormat.OLIVE: "nodes_to_exclude",
    SelectionFormat.NNCF: "names",
}


def select(
    *,
    file: Annotated[
        Path, typer.Argument(help="An ONNX file of modelexport, or of torch's exporters.", show_default=False)
    ],
    selector: Annotated[str | None, typer.Argument(help=SELECTOR_HELP, show_default=False)] = None,
    select_option: Annotated[
        str | None, typer.Option("--select", metavar="SELECTOR", help="The same as SELECTOR.")
    ] = None,
    owners_only: Annotated[
        bool,
        typer.Option("--owners-only", help="Omit (fused) nodes that a selected module only contributed to."),
    ] = False,
    output_format: Annotated[
        SelectionFormat | None,
        format_option("Names, JSON with all fields, or the format of a tool."),
    ] = None,
    report: ReportFile,
    out: Output,
) -> None:
    """List the nodes that a selector picks, in the format of other tools.

    The formats for tools are JSON objects with arguments of the tool: ort-exclude for onnxruntime's quantize_static and
    quantize_dynamic, ort-block-list for its float16 conversion, olive for a quantization pass of Olive, nncf for
    nncf.IgnoredScope. A selector that picks nothing is an error.

    Examples:

        modelexport select model.onnx 'class:LayerNorm'

        modelexport select model.onnx 'embeddings or class:LayerNorm' --format ort-exclude

        modelexport select model.onnx 'encoder.layer.* and op:MatMul' --format json -o nodes.json --force
    """
    if (selector is None) == (select_option is None):
        raise InputError("give the selector once: as SELECTOR, or with --select")
    form = report.form(output_format, SelectionFormat)
    report.check(file)
    from modelexport.analysis.query import select as select_in_file

    with out.working(f"reading {file}"):
        selection = select_in_file(file, str(selector or select_option), contributors=not owners_only)
    text = _as_text(selection, form)
    for note in _notes(selection, form):
        out.note(f"note: {note}")
    report.write(text, out)


def _as_text(selection: Selection, output_format: SelectionFormat) -> str:
    if output_format is SelectionFormat.JSON:
        return json_text(msgspec.to_builtins(selection))
    names = selection.names(nested=output_format is not SelectionFormat.NNCF)
    if output_format is SelectionFormat.HUMAN:
        return "".join(f"{printable(name)}\n" for name in names)
    arguments: dict[str, object] = {_ARGUMENTS[output_format]: names}
    if output_format is SelectionFormat.OLIVE:
        # Its preprocessing would fuse nodes first, and then silently quantize nodes whose excluded names are gone.
        arguments = {"type": "OnnxQuantization", "quant_preprocess": False, **arguments}
    return json_text(arguments)


def _notes(selection: Selection, output_format: SelectionFormat) -> list[str]:
    notes = [f"nothing matches {term!r}" for term in selection.unmatched]
    nested = sum(node.nested for node in selection.nodes)
    if nested and output_format is SelectionFormat.NNCF:
        notes.append(f"{counted(nested, 'node')} in subgraphs and functions left out: NNCF does not quantize there")
    through = sum(node.through == "contributor" for node in selection.nodes)
    if through:
        notes.append(
            f"other modules own {through:,} of the {counted(len(selection.nodes), 'node')}, and the selected ones "
            "contributed (--owners-only omits such nodes)"
        )
    if selection.origin != "sidecar":
        notes.append(f"there is no sidecar; the hierarchy was read from {selection.origin}")
    return notes
