"""The Markdown report of an export."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelexport.analysis.statistics import count_modules

if TYPE_CHECKING:
    from modelexport.result import ExportResult


def markdown_report(reference: str, result: ExportResult) -> str:
    """What an export did, for people who were not there."""
    document = result.document
    lines = [
        f"# Export of {_cell(reference)}",
        "",
        f"- strategy `{document.strategy}`, exporter `{document.exporter}`",
        f"- {len(document.nodes)} nodes, {result.coverage:.1%} with an owner",
        f"- {len(document.modules)} modules, {len(document.calls)} calls",
        *(f"- wrote `{path}`" for path in result.files),
        "",
        "## Attributions",
        "",
        *_table(("kind", "nodes"), sorted(result.kinds.items())),
        "",
        "## Nodes that are not exact",
        "",
        *_table(
            ("node", "operation", "module", "kind", "contributors", "reason"),
            [
                (
                    n.id,
                    n.op,
                    n.module or "(root)",
                    n.kind,
                    ", ".join(c or "(root)" for c in n.contributors),
                    n.reason,
                )
                for n in document.nodes
                if n.kind != "exact"
            ],
        ),
        "",
        "## Modules",
        "",
        *_table(
            ("module", "class", "calls", "own nodes", "nodes", "parameters"),
            [
                (m.path or "(root)", m.class_name, m.calls, m.own_nodes, m.nodes, m.parameters)
                for m in count_modules(document)
                if m.nodes
            ],
        ),
        "",
        "## Steps",
        "",
        *_table(
            ("step", "seconds", "peak memory (MB)"),
            [(s.step, f"{s.seconds:.2f}", f"{s.peak_memory_bytes / 1e6:.0f}") for s in result.steps],
        ),
        "",
        "## Strategies tried",
        "",
        *_table(
            ("strategy", "exporter", "reason", "error"),
            [(a.strategy, a.exporter, a.reason, a.error or "") for a in result.attempts],
        ),
        "",
    ]
    return "\n".join(lines)


def _table(head: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> list[str]:
    if not rows:
        return ["none"]
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines]


def _cell(content: object) -> str:
    return str(content).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
