"""The result of an export, its progress events, and their JSON form."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from modelexport.attempt_report import AttemptReport
from modelexport.display import Summary, summarized
from modelexport.hierarchy import CheckOutcome, FileCheck, HierarchyDocument, json_schema


@dataclasses.dataclass(frozen=True)
class ProgressEvent:
    """A step of an export began (`finished` false) or ended."""

    step: str
    number: int
    total: int
    finished: bool
    seconds: float = 0.0
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class StepReport:
    """Time of a step, and the peak memory of the process at its end."""

    step: str
    seconds: float
    peak_memory_bytes: int
    detail: str = ""


class ExportSummary(msgspec.Struct, frozen=True):
    """The counts of an export."""

    success: bool
    strategy: str
    exporter: str
    node_count: int
    module_count: int
    call_count: int
    tag_count: int
    coverage: float
    kinds: dict[str, int]
    seconds: float
    peak_memory_bytes: int


class PrintedExport(msgspec.Struct, frozen=True):
    """The JSON form of an `ExportResult`."""

    summary: ExportSummary
    onnx_path: str
    sidecar_path: str
    files: tuple[str, ...]
    attempts: tuple[AttemptReport, ...]
    steps: tuple[StepReport, ...]
    dynamic_axes: dict[str, dict[str, str]]
    notes: tuple[str, ...]
    check: FileCheck
    schema_version: int = 1


class PrintedStages(msgspec.Struct, frozen=True):
    """The JSON form of the results of `export_stages`, by stage name."""

    stages: dict[str, PrintedExport]
    schema_version: int = 1


def export_schema() -> dict[str, Any]:
    """The JSON Schema of the output of ``modelexport export --format json``, with and without --stages."""
    return json_schema("modelexport export", PrintedExport, PrintedStages)


def stages_as_dict(results: Mapping[str, ExportResult]) -> dict[str, Any]:
    """The results of `export_stages` in plain types, ready for JSON."""
    printed = PrintedStages({name: result.printed() for name, result in results.items()})
    content: dict[str, Any] = msgspec.to_builtins(printed)
    return content


def tagging_schema() -> dict[str, Any]:
    """The JSON Schema of the output of ``modelexport tag --format json``."""
    return json_schema("modelexport tagging", PrintedExport)


def _summary(result: ExportResult) -> Summary:
    document = result.document
    facts = {
        "onnx_path": result.onnx_path,
        "nodes": len(document.nodes),
        "kinds": ", ".join(f"{count} {kind}" for kind, count in result.kinds.items()),
        "modules": len(document.modules),
        "calls": len(document.calls),
        "strategy": document.strategy,
        "exporter": document.exporter,
        "check": str(result.check),
    }
    return Summary(facts, ("note",), [(note,) for note in result.notes])


_UNCHECKED = FileCheck(CheckOutcome.UNCHECKED)


@summarized(_summary)
@dataclasses.dataclass(frozen=True)
class ExportResult(Mapping[str, Any]):
    """The outcome of an export.

    Attributes:
        onnx_path: The ONNX file.
        sidecar_path: The sidecar next to it.
        files: All written files.
        document: The hierarchy document.
        attempts: What was tried, in order: strategy, exporter, variant, time and reason; the last one succeeded.
        steps: Time and memory of each step.
        dynamic_axes: The dynamic axes of the file: for each input the dimension names by axis index.
        notes: Warnings and fallbacks that the user should know.
        check: What was shown of the file in onnxruntime.

    As a mapping it has the same content in plain types: ``result["summary"]["success"]``.
    """

    onnx_path: Path
    sidecar_path: Path
    files: tuple[Path, ...]
    document: HierarchyDocument
    attempts: tuple[AttemptReport, ...]
    steps: tuple[StepReport, ...]
    dynamic_axes: Mapping[str, Mapping[int, str]] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    check: FileCheck = _UNCHECKED

    @property
    def strategy(self) -> str:
        """The strategy that succeeded."""
        return self.document.strategy

    @property
    def coverage(self) -> float:
        """The fraction of nodes with an owner: always 1.0, since an export with an unowned node fails."""
        return self.document.coverage

    @property
    def kinds(self) -> dict[str, int]:
        """The number of nodes by kind of attribution."""
        return self.document.kinds

    def as_dict(self) -> dict[str, Any]:
        """The result in plain types, ready for JSON."""
        content: dict[str, Any] = msgspec.to_builtins(self.printed())
        return content

    def printed(self) -> PrintedExport:
        """The JSON form of the result."""
        document = self.document
        summary = ExportSummary(
            success=not self.check.is_wrong,
            strategy=document.strategy,
            exporter=document.exporter,
            node_count=len(document.nodes),
            module_count=len(document.modules),
            call_count=len(document.calls),
            tag_count=len({node.tag for node in document.nodes}),
            coverage=self.coverage,
            kinds=self.kinds,
            seconds=sum(step.seconds for step in self.steps),
            peak_memory_bytes=max((step.peak_memory_bytes for step in self.steps), default=0),
        )
        return PrintedExport(
            summary=summary,
            onnx_path=str(self.onnx_path),
            sidecar_path=str(self.sidecar_path),
            files=tuple(str(path) for path in self.files),
            attempts=self.attempts,
            steps=self.steps,
            dynamic_axes={
                name: {str(axis): dimension for axis, dimension in axes.items()}
                for name, axes in self.dynamic_axes.items()
            },
            notes=self.notes,
            check=self.check,
        )

    def __getitem__(self, key: str) -> Any:
        return self.as_dict()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.as_dict())

    def __len__(self) -> int:
        return len(self.as_dict())
