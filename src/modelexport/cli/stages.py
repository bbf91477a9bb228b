"""`modelexport export --stages`: which options go with it, and how its results are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from modelexport.cli.output import OutputFormat, print_json, printable, result_console
from modelexport.errors import InputError

if TYPE_CHECKING:
    from modelexport.result import ExportResult


def check_stage_options(strategy: str, exporter: str | None, others: Mapping[str, object]) -> None:
    """Refuse what has no meaning for stages.

    Args:
        strategy: What was given as ``--strategy``.
        exporter: What was given as ``--exporter``.
        others: Further options that are for one file, with what was given for them.

    Raises:
        InputError: One of them was given.
    """
    if strategy not in ("auto", "fx"):
        raise InputError(f"--stages has no strategy {strategy}: the stages are exported with fx; leave --strategy out")
    if exporter not in (None, "transformers"):
        raise InputError(f"--stages has no exporter {exporter}: transformers' own exports them; leave --exporter out")
    given = [name for name, value in others.items() if value]
    if given:
        raise InputError(f"{given[0]} is for one graph, and --stages writes several: leave one of the two out")


def show_stages(results: Mapping[str, ExportResult], output_format: OutputFormat) -> None:
    """What was done for each stage."""
    if output_format is OutputFormat.JSON:
        print_json({"stages": {name: result.as_dict() for name, result in results.items()}})
        return
    console = result_console()
    for name, result in results.items():
        kinds = ", ".join(f"{count} {kind}" for kind, count in result.kinds.items())
        console.print(
            printable(f"{name}: {len(result.document.nodes)} nodes, {result.coverage:.0%} with an owner ({kinds})"),
            markup=False,
        )
        for path in result.files:
            console.print(printable(f"  wrote {path}"), markup=False)
    last = list(results.values())[-1]
    console.print(printable(f"next: modelexport tree {last.onnx_path}"), markup=False)
