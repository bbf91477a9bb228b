"""Submodels as JSON: the output of the command line, and the manifest of a folder of submodels."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from modelexport.analysis.extraction.port import Port
from modelexport.analysis.extraction.submodel import Submodel
from modelexport.display import Cell, Summary, summarized
from modelexport.hierarchy import json_schema


class SubmodelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A submodel in reports and manifests.

    Attributes:
        call: The call that was extracted.
        tag: Its tag.
        node_count: How many nodes it has.
        inputs: Its inputs.
        outputs: Its outputs.
        notes: What users should know about it.
    """

    call: str
    tag: str
    node_count: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    notes: tuple[str, ...]


class WrittenSubmodel(SubmodelSummary, frozen=True, kw_only=True):
    """A submodel that was written to files."""

    files: tuple[str, ...]
    schema_version: int = 1


class ListedSubmodel(SubmodelSummary, frozen=True, kw_only=True):
    """A submodel of a folder; the file is relative to the folder."""

    file: str


class RefusedSubmodel(msgspec.Struct, frozen=True):
    """A call that could not be extracted; `ExtractionError` documents the fields."""

    call: str
    reason: str
    explanation: str
    fused_with: tuple[str, ...]
    enclosing: str | None


class Manifest(msgspec.Struct, frozen=True):
    """A folder of submodels: the file of each call, and the calls that were refused with the reason."""

    submodels: tuple[ListedSubmodel, ...]
    refused: tuple[RefusedSubmodel, ...]
    schema_version: int = 1


def _summary(found: ExtractedModules) -> Summary:
    facts = {"manifest": found.manifest, "submodels": len(found.submodels), "refused": len(found.refused)}
    rows: list[tuple[Cell, ...]] = [(entry.call or "(root)", entry.file, entry.node_count) for entry in found.submodels]
    rows += [(entry.call or "(root)", entry.explanation, None) for entry in found.refused]
    return Summary(facts, ("call", "file", "nodes"), rows)


@summarized(_summary)
class ExtractedModules(Manifest, frozen=True, kw_only=True):
    """The modules that were extracted to a folder, and those that were refused.

    Attributes:
        manifest: The path of the manifest, which lists both.
    """

    manifest: str


def extraction_schema() -> dict[str, Any]:
    """The JSON Schema of the output of ``modelexport extract --format json``, without and with --select."""
    return json_schema("modelexport extraction", WrittenSubmodel, ExtractedModules)


def summarize_submodel(submodel: Submodel) -> SubmodelSummary:
    """The summary of a submodel, for reports and manifests."""
    return SubmodelSummary(
        call=submodel.call.id,
        tag=submodel.call.tag,
        node_count=len(submodel.document.nodes),
        inputs=submodel.inputs,
        outputs=submodel.outputs,
        notes=tuple(submodel.notes),
    )


def manifest_text(manifest: Manifest) -> str:
    """The JSON text of a manifest."""
    return json.dumps(msgspec.to_builtins(manifest), indent=1, ensure_ascii=True) + "\n"
