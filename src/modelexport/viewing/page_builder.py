"""Build the data of a page from an opened file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from modelexport.storage import ModelFile, Recovered, find_hierarchy, source_line
from modelexport.viewing.call_structure import find_repeats
from modelexport.viewing.graph_tables import GraphTables, read_tables
from modelexport.viewing.hierarchy_tables import call_table, module_table, with_root_call
from modelexport.viewing.overlays import (
    comparison_overlay,
    confidence_overlay,
    flops_overlay,
    kind_overlay,
    precision_overlay,
    profile_overlays,
    verification_overlays,
)
from modelexport.viewing.page_data import About, Calls, Overlay, PageData, StringTable, Weight
from modelexport.viewing.tensor_texts import text_of
from modelexport.viewing.weight_statistics import READ_BYTES, weight_table


@dataclasses.dataclass(frozen=True)
class Content:
    """What a view shows besides the file itself.

    Attributes:
        profile: A report of ``modelexport profile`` in JSON.
        verification: A report of ``modelexport verify`` in JSON.
        compared: Another file that this one is compared with.
        axes: The sizes of dynamic axes by name, for FLOPs.
        private: Leave out source lines.
        statistics_bytes: How many bytes of weights to read for their statistics; 0 for none.
    """

    profile: str | Path | None = None
    verification: str | Path | None = None
    compared: str | Path | None = None
    axes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    private: bool = False
    statistics_bytes: int = READ_BYTES


def build_page_data(file: ModelFile, content: Content) -> PageData:
    """The data of a page of one file.

    Raises:
        InputError: A report cannot be read, or is of another graph.
        FileFormatError: The file has no hierarchy, or a report is not one.
    """
    found = find_hierarchy(file)
    document = with_root_call(found.document)
    strings = StringTable()
    sources = {} if content.private else {node_id: source_line(node) for node_id, node in file.nodes}
    tables = read_tables(file.proto, document, strings, sources)
    weights, notes = weight_table(file, tables.initializers, content.statistics_bytes)
    modules, calls = module_table(document, strings), call_table(document, tables.numbers, strings)
    texts = strings.texts()
    repeats = find_repeats(modules, calls, tables.graphs, tables.nodes, tables.tensors, texts)
    overlays, unknown = _overlays(file, content, calls, tables, texts)
    missing = [file.missing] if file.missing else []
    return PageData(
        file=file.path.name,
        graph_hash=file.graph_hash,
        about=_about(file, found, weights, content.private),
        notes=[*missing, *found.missing, *document.notes, *notes, *unknown],
        strings=texts,
        modules=modules,
        calls=calls,
        graphs=tables.graphs,
        nodes=tables.nodes,
        tensors=tables.tensors,
        weights=weights,
        repeats=repeats,
        overlays=overlays,
    )


def _overlays(
    file: ModelFile, content: Content, calls: Calls, tables: GraphTables, strings: Sequence[str]
) -> tuple[list[Overlay], list[str]]:
    """The overlays, those of the reports first, and notes on those that are left out."""
    nodes = tables.nodes
    found: list[Overlay] = []
    if content.profile is not None:
        found += profile_overlays(content.profile, file, calls, nodes, strings, private=content.private)
    if content.verification is not None:
        found += verification_overlays(content.verification, file, calls, strings)
    if content.compared is not None:
        found.append(comparison_overlay(content.compared, file, calls, nodes, strings))
    flops, notes = flops_overlay(file, calls, nodes, strings, content.axes)
    found += [
        kind_overlay(calls, nodes),
        confidence_overlay(calls, nodes),
        precision_overlay(calls, nodes, tables.tensors, strings),
        *([] if flops is None else [flops]),
    ]
    return found, notes


def page_json(data: PageData) -> bytes:
    """The data as JSON."""
    return msgspec.json.encode(data)


def _about(file: ModelFile, found: Recovered, weights: Mapping[int, Weight], private: bool) -> About:
    proto, document = file.proto, found.document
    external = sum(weight.bytes for weight in weights.values() if weight.external)
    return About(
        strategy=document.strategy,
        exporter=document.exporter,
        origin=found.origin,
        producer=f"{text_of(proto.producer_name)} {text_of(proto.producer_version)}".strip(),
        opsets={text_of(opset.domain) or "ai.onnx": opset.version for opset in proto.opset_import},
        ir_version=proto.ir_version,
        coverage=document.coverage,
        bytes=file.path.stat().st_size + external,
        check="" if document.check is None else str(document.check),
        private=private,
    )
