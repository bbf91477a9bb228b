"""The summary of an export: a few lines of text, and a Markdown report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from modelexport.cli.output import ROOT, command_line
from modelexport.cli.pages import Section, as_markdown
from modelexport.display import counted

if TYPE_CHECKING:
    from modelexport.exporting import ExportResult

_SHOWN_INPUTS = 4


def summary_lines(result: ExportResult, model: str) -> list[str]:
    """The result of an export, and the next steps."""
    return [
        *_counts(result),
        *_attempts(result),
        _check_line(result),
        *(f"wrote {shown_path(path)}" for path in result.files),
        *next_steps(result, model),
    ]


def stage_lines(name: str, result: ExportResult) -> list[str]:
    """The result of one stage of generate()."""
    counts, *_ = _counts(result)
    return [f"{name}: {counts}", f"  {_check_line(result)}", *(f"  wrote {shown_path(path)}" for path in result.files)]


def _check_line(result: ExportResult) -> str:
    return f"{'WRONG' if result.check.is_wrong else 'check'}: {result.check}"


def next_steps(result: ExportResult, model: str) -> list[str]:
    """Commands that show the module tree of the file, and verify it."""
    file = shown_path(result.onnx_path)
    return [
        f"next: {command_line('tree', file)}",
        f"      {command_line('verify', file, '--model', model)}",
    ]


def fixed_sizes(result: ExportResult) -> str:
    """The inputs of the file with their sizes, which are all fixed, and how to change that."""
    inputs = [port for port in result.document.calls[0].inputs if port.info is not None]
    shown = [f"{port.name} {' x '.join(map(str, port.info.shape)) or 'scalar'}" for port in inputs if port.info]
    more = f" and {len(shown) - _SHOWN_INPUTS} more" if len(shown) > _SHOWN_INPUTS else ""
    return f"fixed sizes: {', '.join(shown[:_SHOWN_INPUTS])}{more}; --dynamic auto frees those that can change"


def shown_path(path: Path) -> str:
    """A path relative to the working folder, if it is inside of it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _counts(result: ExportResult) -> list[str]:
    document = result.document
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in result.kinds.items())
    modules, calls = counted(len(document.modules), "module"), counted(len(document.calls), "call")
    return [
        f"{counted(len(document.nodes), 'node')}, {result.coverage:.0%} with an owner ({kinds})",
        f"{modules}, {calls}, strategy {result.strategy}, exporter {document.exporter}",
    ]


def _attempts(result: ExportResult) -> list[str]:
    """One line for the attempts before the one that succeeded; ``--report`` and JSON have the errors."""
    failed = result.attempts[:-1]
    return [f"tried before: {'; '.join(f'{a.name}, {a.seconds:.1f} s' for a in failed)}"] if failed else []


def markdown_report(model: str, result: ExportResult) -> str:
    """A Markdown report of an export."""
    from modelexport.analysis.query import count_modules

    document = result.document
    inexact = tuple(
        (n.id, n.op, n.module or ROOT, n.kind, ", ".join(c or ROOT for c in n.contributors), n.reason)
        for n in document.nodes
        if n.kind != "exact"
    )
    modules = tuple(
        (m.path or ROOT, m.class_name, m.calls, m.own_nodes, m.nodes, m.parameters)
        for m in count_modules(document)
        if m.nodes
    )
    steps = tuple((s.step, f"{s.seconds:.2f}", f"{s.peak_memory_bytes / 1e6:.0f}") for s in result.steps)
    attempts = tuple(
        (
            a.strategy,
            a.exporter,
            a.variant,
            f"{a.seconds:.1f}",
            " ".join(a.reason.split()),
            " ".join((a.error or "").split()),
        )
        for a in result.attempts
    )
    sections = [
        Section(
            "Result",
            (*_counts(result), _check_line(result), *(f"wrote {path}" for path in result.files), *result.notes),
        ),
        Section("Attributions", (), ("kind", "nodes"), tuple(sorted(result.kinds.items()))),
        _table("Nodes that are not exact", ("node", "operation", "module", "kind", "contributors", "reason"), inexact),
        _table("Modules", ("module", "class", "calls", "own nodes", "nodes", "parameters"), modules),
        _table("Steps", ("step", "seconds", "peak memory (MB)"), steps),
        _table("Attempts", ("strategy", "exporter", "variant", "seconds", "reason", "error"), attempts),
    ]
    return as_markdown(f"Export of {model}", sections)


def _table(title: str, headers: tuple[str, ...], rows: tuple[tuple[str | int, ...], ...]) -> Section:
    return Section(title, () if rows else ("none",), headers, rows)
