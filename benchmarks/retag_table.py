"""Measure how much of the hierarchy each tool that rewrites ONNX files keeps, with and without retag.

Run with ``make retag``, or ``python -m benchmarks.retag_table --write docs/measurements/retag.md``, which replaces both
tables of that page. The second table is for the same files with all names changed, retagged by value.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.pages import replace_part, table
from benchmarks.quiet import quiet
from tests.support import rewriting, zoo
from tests.support.renaming import rename_file, with_old_names

import modelexport
from modelexport.analysis.retagging.retagger import retag
from modelexport.storage.opened_file import load
from modelexport.torch_support.example_inputs import normalize_inputs
from modelexport.torch_support.tensor_paths import named_arguments

_HEAD = ("model", "tool", "nodes", "untouched", "exact", "projected", "inferred", "wrong")
# Quantized files have other values, so their tensors cannot be matched by value.
_OTHER_VALUES = ("quantize_dynamic", "quantize_static QDQ", "quantize_static QOperator")
UNTOUCHED = "none"


Row = tuple[object, ...]


def rows(name: str, folder: Path) -> tuple[list[Row], list[Row]]:
    """The rows of a model in both tables."""
    example = zoo.build(name)
    tagged = folder / f"{name}.onnx"
    document = modelexport.export_model(example.model, example.inputs, tagged, strategy="fx", overwrite=True).document
    args, kwargs = normalize_inputs(example.inputs, None)
    given = [tensor.numpy() for _, tensor in named_arguments(document.modules[0].forward_arguments, args, kwargs)]
    feeds = {value.name or "": array for value, array in zip(load(tagged).model.graph.inputs, given, strict=True)}
    by_name: list[Row] = []
    by_value = [_by_value_row(name, UNTOUCHED, tagged, tagged, document, folder)]
    for tool in rewriting.TOOLS:
        rewritten = folder / f"{name}-{tool.replace(' ', '-')}.onnx"
        try:
            rewriting.rewrite(tool, tagged, rewritten, feeds)
        except Exception as error:  # noqa: BLE001  whatever a tool raises is a line of the table
            by_name.append((name, tool, f"the tool fails: {type(error).__name__}", *[""] * 7))
            continue
        report = retag(rewritten, tagged, folder / "retagged.onnx", overwrite=True)
        verdict = rewriting.judge(tagged, document, rewritten, report.document)
        kept = (verdict.metadata_kept, verdict.doc_string_kept)
        by_name.append((name, tool, *_numbers(verdict, report), *kept))
        print(*by_name[-1], sep=" | ", flush=True)
        if tool not in _OTHER_VALUES:
            by_value.append(_by_value_row(name, tool, tagged, rewritten, document, folder))
    return by_name, by_value


def _numbers(verdict: rewriting.Verdict, report: modelexport.RetagReport) -> tuple[int, ...]:
    wrong = len(verdict.unowned) + len(verdict.moved) + len(verdict.unrelated)
    return verdict.nodes, verdict.untouched, report.exact, report.projected, report.inferred, wrong


def _by_value_row(
    name: str, tool: str, tagged: Path, rewritten: Path, document: modelexport.HierarchyDocument, folder: Path
) -> Row:
    renamed = folder / "renamed.onnx"
    old = rename_file(rewritten, renamed)
    report = retag(renamed, tagged, folder / "retagged.onnx", by_value=True, overwrite=True)
    verdict = rewriting.judge(tagged, document, rewritten, with_old_names(report.document, old))
    row = (name, tool, *_numbers(verdict, report), f"{report.tensors_kept} of {report.tensors_before}")
    print("by value", *row, sep=" | ", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="the Markdown page whose tables are replaced")
    options = parser.parse_args()
    by_name: list[Row] = []
    by_value: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, quiet():
        for name in rewriting.MODELS:
            named, valued = rows(name, Path(folder))
            by_name += named
            by_value += valued
    if options.write:
        replace_part(options.write, "by name", table((*_HEAD, "in metadata", "in doc_string"), by_name))
        replace_part(options.write, "by value", table((*_HEAD, "tensors matched"), by_value))


if __name__ == "__main__":
    main()
