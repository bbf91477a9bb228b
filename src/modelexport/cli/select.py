"""`modelexport select`: the nodes that a selector picks, in the forms that other tools take."""

from __future__ import annotations

import enum
import json
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from modelexport.analysis.selection import Selection
from modelexport.analysis.selection import select as select_in_file
from modelexport.cli.output import message_console, printable, working
from modelexport.textfile import check_text_target, write_text


class SelectionFormat(enum.StrEnum):
    """In which form a selection is printed."""

    NAMES = "names"
    JSON = "json"
    ORT_EXCLUDE = "ort-exclude"
    ORT_BLOCK_LIST = "ort-block-list"
    OLIVE = "olive"
    NNCF = "nncf"


# The argument by which each tool takes the names of nodes.
_ARGUMENTS = {
    SelectionFormat.ORT_EXCLUDE: "nodes_to_exclude",
    SelectionFormat.ORT_BLOCK_LIST: "node_block_list",
    SelectionFormat.OLIVE: "nodes_to_exclude",
    SelectionFormat.NNCF: "names",
}


def select(
    file: Annotated[Path, typer.Argument(help="An ONNX file of modelexport, or of torch's exporters.")],
    pattern: Annotated[
        str, typer.Argument(help="A selector: paths, tags, class:, op:, and/or/not (docs/selectors.md).")
    ],
    output_format: Annotated[
        SelectionFormat, typer.Option("--format", help="Names, everything, or what a tool takes.")
    ] = SelectionFormat.NAMES,
    owners_only: Annotated[
        bool,
        typer.Option("--owners-only", help="Leave out nodes that a selected module only contributed to (fused ones)."),
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to a file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace that file if it exists.")] = False,
) -> None:
    """List the nodes of a model that a selector picks: for quantizers and mixed-precision tools, or for programs.

    The forms for tools are JSON objects of the tool's own arguments: ort-exclude for onnxruntime's quantize_static and
    quantize_dynamic, ort-block-list for its float16 conversion, olive for a quantization pass of Olive, nncf for
    nncf.IgnoredScope. A selector that picks nothing is an error.

    Examples:

        modelexport select model.onnx 'class:LayerNorm'

        modelexport select model.onnx 'embeddings or class:LayerNorm' --format ort-exclude

        modelexport select model.onnx 'encoder.layer.* and op:MatMul' --format json -o nodes.json --force
    """
    target = check_text_target(output, force=force, taken=[file]) if output is not None else None
    with working(f"reading {file}"):
        selection = select_in_file(file, pattern, contributors=not owners_only)
    text = _as_text(selection, output_format)
    for note in _notes(selection, output_format):
        message_console().print(printable(f"note: {note}"), markup=False)
    if target is None:
        sys.stdout.write(text)
        return
    write_text(target, text)
    message_console().print(printable(f"wrote {target}"), markup=False)


def _as_text(selection: Selection, output_format: SelectionFormat) -> str:
    if output_format is SelectionFormat.JSON:
        return json.dumps(msgspec.to_builtins(selection), indent=2, ensure_ascii=True) + "\n"
    names = selection.names(nested=output_format is not SelectionFormat.NNCF)
    if output_format is SelectionFormat.NAMES:
        return "".join(f"{printable(name)}\n" for name in names)
    arguments: dict[str, object] = {_ARGUMENTS[output_format]: names}
    if output_format is SelectionFormat.OLIVE:
        # Its own preparation fuses nodes first, and what is excluded by a name that is gone is quantized in silence.
        arguments = {"type": "OnnxQuantization", "quant_preprocess": False, **arguments}
    return json.dumps(arguments, indent=2, ensure_ascii=True) + "\n"


def _notes(selection: Selection, output_format: SelectionFormat) -> list[str]:
    notes = [f"nothing here is {term!r}" for term in selection.unmatched]
    nested = sum(node.nested for node in selection.nodes)
    if nested and output_format is SelectionFormat.NNCF:
        notes.append(f"{nested} nodes in bodies and functions are left out: NNCF does not quantize there")
    through = sum(node.through == "contributor" for node in selection.nodes)
    if through:
        notes.append(
            f"{through} of the {len(selection.nodes)} nodes belong to other modules and do work of the selected ones "
            "too (--owners-only leaves them out)"
        )
    if selection.origin != "sidecar":
        notes.append(f"there is no sidecar; modules are known from {selection.origin}")
    return notes
