"""Submodels as plain data: what the command line prints, and the manifest of a folder of submodels."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import onnx_ir as ir

from modelexport.analysis.extraction.submodel import Port, Submodel
from modelexport.display import Cell, Summary, summarized
from modelexport.hierarchy import json_schema


class DescribedPort(msgspec.Struct, frozen=True):
    """An input or output of a submodel.

    Attributes:
        name: Its name in the submodel.
        argument: The argument of the module's forward, or the field of its result; None for a tensor that is neither.
        tensor: The tensor of the whole model that it was.
        type: Its element type, where it is known.
        shape: Its shape, where it is known: numbers, names of axes, and None for what has neither.
    """

    name: str
    argument: str | None
    tensor: str
    type: str | None
    shape: tuple[int | str | None, ...] | None


class DescribedSubmodel(msgspec.Struct, frozen=True, kw_only=True):
    """A submodel as it is printed and written to manifests.

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
    inputs: tuple[DescribedPort, ...]
    outputs: tuple[DescribedPort, ...]
    notes: tuple[str, ...]


class WrittenSubmodel(DescribedSubmodel, frozen=True, kw_only=True):
    """A submodel that was written to files."""

    files: tuple[str, ...]
    schema_version: int = 1


class ListedSubmodel(DescribedSubmodel, frozen=True, kw_only=True):
    """A submodel in a folder of many: the file is named as seen from there."""

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
    """The JSON Schema of what ``modelexport extract --format json`` prints: for one module, and with --select."""
    return json_schema("modelexport extraction", WrittenSubmodel, ExtractedModules)


def describe_submodel(submodel: Submodel) -> DescribedSubmodel:
    """What a submodel is, in plain types: for manifests and for programs."""
    graph = submodel.model.graph

    def ports(given: tuple[Port, ...], values: Iterable[ir.Value]) -> tuple[DescribedPort, ...]:
        return tuple(
            DescribedPort(
                name=port.name,
                argument=port.argument,
                tensor=port.tensor,
                type=None if value.dtype is None else value.dtype.name.lower(),
                shape=None if value.shape is None else tuple(_size(size) for size in value.shape),
            )
            for port, value in zip(given, values, strict=True)
        )

    return DescribedSubmodel(
        call=submodel.call.id,
        tag=submodel.call.tag,
        node_count=len(submodel.document.nodes),
        inputs=ports(submodel.inputs, graph.inputs),
        outputs=ports(submodel.outputs, graph.outputs),
        notes=tuple(submodel.notes),
    )


def _size(size: int | ir.SymbolicDim) -> int | str | None:
    return size if isinstance(size, int) else size.value


def manifest_text(manifest: Manifest) -> str:
    """The manifest as it is written."""
    return json.dumps(msgspec.to_builtins(manifest), indent=1, ensure_ascii=True) + "\n"
