"""Count the module calls that can be extracted and compute PyTorch's results, for each model.

Export every test model and every conformance case, extract every call that ran an operator in eager PyTorch, run it in
onnxruntime on the inputs of the PyTorch module, and compare the outputs with PyTorch's.

    python -m benchmarks.extraction_rates [--only PATTERN] [--write docs/measurements/extraction.md]
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import fnmatch
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import torch
from benchmarks.pages import replace_part, table
from benchmarks.quiet import quiet
from tests.conformance import bench
from tests.conformance.case import all_cases
from tests.support import nine, zoo
from tests.support.extraction_check import ATOL, RTOL, Outcome, eager_truth, judge_extractions
from tests.support.plain import fresh_generated_code

import modelexport
from modelexport.errors import ModelExportError
from modelexport.torch_support.example_inputs import normalize_inputs

# The TorchScript exporter folds and fuses regardless of `optimize`, so htp has one column.
COLUMNS = ("fx, optimize=False", "fx", "htp")
_KINDS = {"fx, optimize=False": "dynamo-raw", "fx": "dynamo", "htp": "torchscript"}


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model, its inputs and the function that exports it for a column, or returns None if that is not supported."""

    name: str
    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    export: Callable[[str, Path], Any]


def subjects() -> Iterator[Subject]:
    for label, source in (("", zoo), ("nine: ", nine)):
        for name in source.names() if source is zoo else nine.NAMES:
            yield _of_example(f"{label}{name}", source.build(name))
    for name, case in all_cases().items():
        model, inputs = case.example()
        args, kwargs = inputs[0]

        def export(column: str, path: Path, case: Any = case, inputs: Any = inputs) -> Any:
            if not case.applies(_KINDS[column]):
                return None
            model, _ = case.example()
            return bench.export(model, inputs[0], path, case, _KINDS[column])

        yield Subject(f"case: {name}", model, args, kwargs, export)


def _of_example(name: str, example: zoo.ExampleModel) -> Subject:
    args, kwargs = normalize_inputs(example.inputs, None)

    def export(column: str, path: Path) -> Any:
        fresh_generated_code()
        strategy = column.partition(",")[0]
        optimize = column != "fx, optimize=False"
        return modelexport.export_model(
            example.model, example.inputs, path, strategy=strategy, optimize=optimize, overwrite=True
        )

    return Subject(name, example.model, args, kwargs, export)


@dataclasses.dataclass
class Row:
    """The outcomes of one model in one column."""

    outcomes: list[Outcome]
    problem: str = ""

    def text(self) -> str:
        if self.problem:
            return self.problem
        counts = Counter(outcome.status for outcome in self.judged)
        parts = [f"{counts['equal']} of {len(self.judged)}"]
        if counts["refused"]:
            parts.append(f"{counts['refused']} fused")
        if counts["differs"]:
            parts.append(f"**{counts['differs']} differ**")
        if len(self.judged) < len(self.outcomes):
            parts.append(f"{len(self.outcomes) - len(self.judged)} not in the file")
        return ", ".join(parts)

    @property
    def judged(self) -> list[Outcome]:
        """The calls with nodes in the file: exporters drop calls whose results are unused."""
        return [outcome for outcome in self.outcomes if outcome.reason != "no_operation"]


def judge(subject: Subject, column: str, truth: Any, folder: Path) -> Row:
    path = folder / f"model-{COLUMNS.index(column)}.onnx"
    try:
        if subject.export(column, path) is None:
            return Row([], "not exportable")
    except ModelExportError:
        return Row([], "not exportable")
    tensors = torch.utils._pytree.tree_leaves((subject.args, subject.kwargs))
    leaves = [leaf.numpy() for leaf in tensors if isinstance(leaf, torch.Tensor)]
    graph = onnx.load(path, load_external_data=False).graph
    feeds = {value.name: leaf for value, leaf in zip(graph.input, leaves, strict=False)}
    return Row(judge_extractions(path, truth, feeds))


def measure(only: str) -> dict[str, dict[str, Row]]:
    found: dict[str, dict[str, Row]] = {}
    for subject in subjects():
        if fnmatch.fnmatch(subject.name, only):
            with tempfile.TemporaryDirectory() as folder:
                truth = eager_truth(copy.deepcopy(subject.model), subject.args, subject.kwargs)
                rows = {column: judge(subject, column, truth, Path(folder)) for column in COLUMNS}
            found[subject.name] = rows
            print(f"{subject.name:36} " + " | ".join(rows[column].text() for column in COLUMNS), flush=True)
    return found


def report(found: dict[str, dict[str, Row]]) -> str:
    lines = [
        table(("model", *COLUMNS), [(name, *(rows[c].text() for c in COLUMNS)) for name, rows in found.items()]),
        "",
    ]
    lines += [_summary(column, [o for rows in found.values() for o in rows[column].judged]) for column in COLUMNS]
    lines += ["", f"Equal means rtol {RTOL}, atol {ATOL} in float32.", *_differences(found)]
    return "\n".join(lines)


def _summary(column: str, outcomes: list[Outcome]) -> str:
    def share(of: list[Outcome]) -> str:
        equal = sum(outcome.status == "equal" for outcome in of)
        return f"{equal} of {len(of)} ({equal / max(len(of), 1):.1%})"

    complete = [outcome for outcome in outcomes if outcome.complete]
    refused = Counter(outcome.reason for outcome in outcomes if outcome.status == "refused")
    different = sum(outcome.status == "differs" for outcome in outcomes)
    return (
        f"- **{column}**: {share(outcomes)} calls equal PyTorch; of those with all boundary tensors in the file, "
        f"{share(complete)}. Refused: {', '.join(f'{n} {reason}' for reason, n in refused.items()) or 'none'}; "
        f"different: {different}."
    )


def _differences(found: dict[str, dict[str, Row]]) -> list[str]:
    def calls(status: str) -> list[str]:
        lines = [
            f"- {name}, {column}, `{outcome.call or '(root)'}`: {outcome.detail}"
            for name, rows in found.items()
            for column in COLUMNS
            for outcome in rows[column].judged
            if outcome.status == status
        ]
        return sorted(set(lines))

    lines: list[str] = []
    for title, listed in (("Different:", calls("differs")), ("Refused, with the error:", calls("refused"))):
        lines += ["", title, "", *listed] if listed else []
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="a pattern for the names of the models")
    parser.add_argument("--write", type=Path, help="the Markdown page whose table is replaced")
    options = parser.parse_args()
    with quiet():
        text = report(measure(options.only))
    print(text)
    if options.write is not None:
        replace_part(options.write, "extraction", text)


if __name__ == "__main__":
    main()
