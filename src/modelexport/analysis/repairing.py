"""repair: the stores of a file that are missing or damaged, written again from those that are there."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from modelexport.analysis.subject import Subject
from modelexport.document import HierarchyDocument
from modelexport.errors import FileFormatError, InputError
from modelexport.finished import read_finished, write_finished
from modelexport.graph import graph_hash
from modelexport.recovery import recover_document

_OURS = ("doc_string", "metadata_props")


@dataclasses.dataclass(frozen=True)
class Repair:
    """What was done.

    Attributes:
        origin: The store that the others were written from.
        files: What was written.
        missing: What that store does not tell, in words.
    """

    origin: str
    files: tuple[Path, ...]
    missing: tuple[str, ...] = ()


def repair(path: str | Path) -> Repair:
    """Write all three stores of a file anew, in place.

    A sidecar that can be read and belongs to the graph knows most: the nodes' stores are written from it. Else the
    nodes say what they know, and the sidecar is made of that.

    Raises:
        InputError: There is no such file, or nothing of ours in it to repair from.
        FileFormatError: It is not an ONNX model.
        StorageError: The files could not be written.
    """
    subject = Subject(path)
    finished = read_finished(subject.path, subject.path, overwrite=True)
    document, origin, missing = _best(subject)
    if document is None:
        try:
            found = recover_document(subject.model, subject.nodes, finished.graph)
        except FileFormatError as error:
            raise _nothing(subject.path) from error
        if found.origin not in _OURS:
            raise _nothing(subject.path)
        document, origin, missing = found.document, found.origin, found.missing
    return Repair(origin, write_finished(finished, document, subject.path, overwrite=True), missing)


def _best(subject: Subject) -> tuple[HierarchyDocument | None, str, tuple[str, ...]]:
    document = subject.document
    if document is None or document.graph_hash != graph_hash(subject.model, subject.nodes):
        return None, "", ()
    # As `read_model` demands it: each node once, in their order.
    if [record.id for record in document.nodes] != [identity for identity, _ in subject.nodes]:
        return None, "", ()
    return document, "sidecar", ()


def _nothing(path: Path) -> InputError:
    return InputError(
        f"{path} holds none of our stores to repair from: export the model again, or tag the file with modelexport tag"
    )
