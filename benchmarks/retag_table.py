"""Measure how much of the hierarchy each tool that rewrites ONNX files keeps, with and without retag.

Run with ``make retag``, or ``python benchmarks/retag_table.py --write docs/measurements/retag.md``, which replaces both
tables of that page. The second table is for the same files with all names changed, retagged by value.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support import rewriting, zoo
from tests.support.renaming import rename_file, with_old_names

import modelexport
from modelexport.analysis.retagging.retagger import retag
from modelexport.storage.opened_file import load
from modelexport.torch_support.example_inputs import normalize_inputs
from modelexport.torch_support.tensor_paths import named_arguments

_MARKS = {
    "table": ("<!-- table -->", "<!-- end of table -->"),
    "by value": ("<!-- by value -->", "<!-- end of by value -->"),
}
_HEAD = "| model | tool | nodes | untouched | exact | projected | inferred | wrong | in metadata | in doc_string |"


_HEAD_BY_VALUE = "| model | tool | nodes | untouched | exact | projected | inferred | wrong | tensors matched |"
# Quantized files have other values, so their tensors cannot be matched by value.
_OTHER_VALUES = ("quantize_dynamic", "quantize_static QDQ", "quantize_static QOperator")
UNTOUCHED = "none"


def rows(name: str, folder: Path) -> tuple[list[str], list[str]]:
    """The rows of a model in both tables."""
    specimen = zoo.build(name)
    tagged = folder / f"{name}.onnx"
    document = modelexport.export_model(specimen.model, specimen.inputs, tagged, strategy="fx", overwrite=True).document
    args, kwargs = normalize_inputs(specimen.inputs, None)
    given = [tensor.numpy() for _, tensor in named_arguments(document.modules[0].forward_arguments, args, kwargs)]
    feeds = {value.name or "": array for value, array in zip(load(tagged).model.graph.inputs, given, strict=True)}
    lines, by_value = [], [_by_value_row(name, UNTOUCHED, tagged, tagged, document, folder)]
    for tool in rewriting.TOOLS:
        rewritten = folder / f"{name}-{tool.replace(' ', '-')}.onnx"
        try:
            rewriting.rewrite(tool, tagged, rewritten, feeds)
        except Exception as error:  # noqa: BLE001  whatever a tool raises is a line of the table
            lines.append(f"| {name} | {tool} | the tool fails: {type(error).__name__} ||||||||")
            continue
        report = retag(rewritten, tagged, folder / "retagged.onnx", overwrite=True)
        verdict = rewriting.judge(tagged, document, rewritten, report.document)
        wrong = len(verdict.unowned) + len(verdict.moved) + len(verdict.strangers)
        numbers = (verdict.nodes, verdict.untouched, report.exact, report.projected, report.inferred, wrong)
        kept = (verdict.metadata_kept, verdict.doc_string_kept)
        lines.append(f"| {name} | {tool} | {' | '.join(str(number) for number in (*numbers, *kept))} |")
        print(lines[-1], flush=True)
        if tool not in _OTHER_VALUES:
            by_value.append(_by_value_row(name, tool, tagged, rewritten, document, folder))
    return lines, by_value


def _by_value_row(
    name: str, tool: str, tagged: Path, rewritten: Path, document: modelexport.HierarchyDocument, folder: Path
) -> str:
    renamed = folder / "renamed.onnx"
    old = rename_file(rewritten, renamed)
    report = retag(renamed, tagged, folder / "retagged.onnx", by_value=True, overwrite=True)
    verdict = rewriting.judge(tagged, document, rewritten, with_old_names(report.document, old))
    wrong = len(verdict.unowned) + len(verdict.moved) + len(verdict.strangers)
    numbers = (verdict.nodes, verdict.untouched, report.exact, report.projected, report.inferred, wrong)
    known = f"{report.tensors_kept} of {report.tensors_before}"
    line = f"| {name} | {tool} | {' | '.join(str(number) for number in numbers)} | {known} |"
    print(f"by value {line}", flush=True)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="the Markdown page whose tables are replaced")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    by_name: list[str] = []
    by_value: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in rewriting.MODELS:
            lines, others = rows(name, Path(folder))
            by_name += lines
            by_value += others
    if options.write:
        page = options.write.read_text(encoding="utf-8")
        page = _with_table(page, "table", _HEAD, by_name)
        page = _with_table(page, "by value", _HEAD_BY_VALUE, by_value)
        options.write.write_text(page, encoding="utf-8")


def _with_table(page: str, which: str, head: str, lines: list[str]) -> str:
    start, end = _MARKS[which]
    before, _, rest = page.partition(start)
    table = "\n".join([head, "|" + "---|" * (head.count("|") - 1), *lines])
    return f"{before}{start}\n{table}\n{end}{rest.partition(end)[2]}"


if __name__ == "__main__":
    main()
