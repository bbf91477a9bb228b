"""repair: the stores of a file that are missing or damaged, written again from those that are there."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec

from modelexport.analysis.validation.subject import Subject
from modelexport.display import Summary, summarized
from modelexport.errors import FileFormatError, InputError
from modelexport.hierarchy import HierarchyDocument, json_schema
from modelexport.storage import check_target, read_untagged, recover_document, write_tagged

_OURS = ("doc_string", "metadata_props")


def _summary(report: RepairReport) -> Summary:
    facts = {"file": report.files[0] if report.files else None, "origin": report.origin}
    return Summary(facts, ("not known",), [(text,) for text in report.missing])


@summarized(_summary)
@dataclasses.dataclass(frozen=True)
class RepairReport:
    """What was repaired.

    Attributes:
        origin: The store that the others were written from.
        files: What was written.
        missing: What that store does not tell, in words.
    """

    origin: str
    files: tuple[Path, ...]
    missing: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The report in plain types, ready for JSON."""
        files = tuple(str(path) for path in self.files)
        content: dict[str, Any] = msgspec.to_builtins(PrintedRepair(self.origin, files, self.missing))
        return content


class PrintedRepair(msgspec.Struct, frozen=True):
    """A repair as commands print it; `RepairReport` says what each field means."""

    origin: str
    files: tuple[str, ...]
    missing: tuple[str, ...]
    schema_version: int = 1


def repair_schema() -> dict[str, Any]:
    """The JSON Schema of what ``modelexport repair --format json`` prints."""
    return json_schema("modelexport repair", PrintedRepair)


def repair(path: str | Path, output_path: str | Path | None = None, *, overwrite: bool = False) -> RepairReport:
    """Write all three stores of a file anew.

    A sidecar that can be read and belongs to the graph knows most: the nodes' stores are written from it. Else the
    nodes say what they know, and the sidecar is made of that.

    Args:
        path: The file.
        output_path: The file to write; None replaces `path`, which `overwrite` has to allow.
        overwrite: Replace files that exist.

    Raises:
        InputError: There is no such file, or nothing of ours in it to repair from.
        FileFormatError: It is not an ONNX model.
        StorageError: The files could not be written.
    """
    subject = Subject(path)
    target = check_target(subject.path if output_path is None else Path(output_path), force=overwrite)
    finished = read_untagged(subject.path, target, overwrite=overwrite)
    document, origin, missing = _best(subject)
    if document is None:
        try:
            found = recover_document(subject.model, subject.nodes, finished.graph)
        except FileFormatError as error:
            raise _nothing(subject.path) from error
        if found.origin not in _OURS:
            raise _nothing(subject.path)
        document, origin, missing = found.document, found.origin, found.missing
    return RepairReport(origin, write_tagged(finished, document, target, overwrite=overwrite), missing)


def _best(subject: Subject) -> tuple[HierarchyDocument | None, str, tuple[str, ...]]:
    document = subject.document
    if document is None or document.graph_hash != subject.file.graph_hash:
        return None, "", ()
    # As `read_model` demands it: each node once, in their order.
    if [record.id for record in document.nodes] != [identity for identity, _ in subject.nodes]:
        return None, "", ()
    return document, "sidecar", ()


def _nothing(path: Path) -> InputError:
    return InputError(
        f"{path} holds none of our stores to repair from: export the model again, or tag the file with modelexport tag"
    )
