"""repair: restore missing or damaged stores of a file from the others."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import msgspec

from modelexport.analysis.validation.rule import ValidatedFile
from modelexport.deadline import reads_files
from modelexport.display import Summary, summarized
from modelexport.errors import FileFormatError, InputError
from modelexport.hierarchy import json_schema
from modelexport.storage import check_target, read_untagged, recover_document, sidecar_path, write_tagged

_OURS = ("doc_string", "metadata_props")


def _summary(report: RepairReport) -> Summary:
    facts = {"file": report.files[0] if report.files else None, "origin": report.origin}
    return Summary(facts, ("missing",), [(text,) for text in report.missing])


@summarized(_summary)
@dataclasses.dataclass(frozen=True)
class RepairReport:
    """The result of a repair.

    Attributes:
        origin: The store that the others were restored from.
        files: The files written, the model first.
        missing: What that store does not contain.
    """

    origin: str
    files: tuple[Path, ...]
    missing: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON."""
        files = tuple(str(path) for path in self.files)
        content: dict[str, Any] = msgspec.to_builtins(PrintedRepair(self.origin, files, self.missing))
        return content


class PrintedRepair(msgspec.Struct, frozen=True):
    """The JSON of a `RepairReport`."""

    origin: str
    files: tuple[str, ...]
    missing: tuple[str, ...]
    schema_version: int = 1


def repair_schema() -> dict[str, Any]:
    """The JSON Schema of the output of ``modelexport repair --format json``."""
    return json_schema("modelexport repair", PrintedRepair)


@reads_files()
def repair(path: str | Path, output_path: str | Path | None = None, *, overwrite: bool = False) -> RepairReport:
    """Rewrite all three stores of a file: doc_string, metadata_props and sidecar.

    The source is the sidecar, if it can be read and describes this graph. Otherwise it is the metadata of the nodes,
    and the new sidecar has no boundaries and only the modules that tags name.

    Args:
        path: The file.
        output_path: The file to write; None replaces `path`, which needs `overwrite`.
        overwrite: Replace existing files.

    Raises:
        InputError: The file does not exist, or has no hierarchy of ours.
        FileFormatError: It is not an ONNX model.
        StorageError: The files could not be written.
    """
    file = ValidatedFile(path)
    target = check_target(file.path if output_path is None else output_path, force=overwrite)
    untagged = read_untagged(file.path, target, overwrite=overwrite)
    missing: tuple[str, ...] = ()
    # The sidecar may be that of another file with the same graph.
    is_own = file.sidecar == sidecar_path(file.path)
    document, origin = file.document, "sidecar" if is_own else f"sidecar {file.sidecar.name}"
    # As `read_model` accepts it: with the hash of the graph, and each node once, in order.
    ids = [node_id for node_id, _ in file.nodes]
    if (
        document is None
        or document.graph_hash != file.opened.graph_hash
        or [record.id for record in document.nodes] != ids
    ):
        found = None
        with contextlib.suppress(FileFormatError):
            found = recover_document(file.model, file.nodes, untagged.graph)
        if found is None or found.origin not in _OURS:
            raise InputError(
                f"{file.path} has no hierarchy of ours to repair from: export the model again, or tag the file with "
                "modelexport tag"
            )
        document, origin, missing = found.document, found.origin, found.missing
    return RepairReport(origin, write_tagged(untagged, document, target, overwrite=overwrite), missing)
