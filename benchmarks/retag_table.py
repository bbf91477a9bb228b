"""What is left of a model's hierarchy behind each tool that rewrites ONNX files: with retag, and in plain metadata.

Run with ``make retag``, or ``python benchmarks/retag_table.py --write docs/retag.md``: the table there is this one.
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

import modelexport
from modelexport.analysis.retagging import retag
from modelexport.inputs import normalize_inputs
from modelexport.loading import load
from modelexport.structure import named_arguments

_START, _END = "<!-- table -->", "<!-- end of table -->"
_HEAD = "| model | tool | nodes | untouched | exact | projected | inferred | wrong | in metadata | in doc_string |"


def rows(name: str, folder: Path) -> list[str]:
    specimen = zoo.build(name)
    tagged = folder / f"{name}.onnx"
    document = modelexport.export_model(specimen.model, specimen.inputs, tagged, strategy="fx").document
    args, kwargs = normalize_inputs(specimen.inputs, None)
    given = [tensor.numpy() for _, tensor in named_arguments(document.modules[0].forward_arguments, args, kwargs)]
    feeds = {value.name or "": array for value, array in zip(load(tagged).model.graph.inputs, given, strict=True)}
    lines = []
    for tool in rewriting.TOOLS:
        rewritten = folder / f"{name}-{tool.replace(' ', '-')}.onnx"
        try:
            rewriting.rewrite(tool, tagged, rewritten, feeds)
        except Exception as error:  # noqa: BLE001  whatever a tool raises is a line of the table
            lines.append(f"| {name} | {tool} | the tool fails: {type(error).__name__} ||||||||")
            continue
        report = retag(rewritten, tagged, folder / "retagged.onnx")
        verdict = rewriting.judge(tagged, document, rewritten, report.document)
        wrong = len(verdict.unowned) + len(verdict.moved) + len(verdict.strangers)
        numbers = (verdict.nodes, verdict.untouched, report.exact, report.projected, report.inferred, wrong)
        kept = (verdict.metadata_kept, verdict.doc_string_kept)
        lines.append(f"| {name} | {tool} | {' | '.join(str(number) for number in (*numbers, *kept))} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="put the table into this page")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        lines = [line for name in rewriting.MODELS for line in rows(name, Path(folder))]
    if options.write:
        page = options.write.read_text(encoding="utf-8")
        before, _, rest = page.partition(_START)
        table = "\n".join([_HEAD, "|" + "---|" * 10, *lines])
        options.write.write_text(f"{before}{_START}\n{table}\n{_END}{rest.partition(_END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
