"""Build the data of a page from an opened file."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from modelexport.gc_pause import gc_paused
from modelexport.storage import ModelFile, Recovered, find_hierarchy, source_lines
from modelexport.viewing.call_structure import find_repeats
from modelexport.viewing.graph_tables import read_tables
from modelexport.viewing.hierarchy_tables import call_table, module_table, with_root_call
from modelexport.viewing.page_data import About, PageData, StringTable, Weight
from modelexport.viewing.tensor_texts import text_of
from modelexport.viewing.weight_statistics import READ_BYTES, weight_table


def build_page_data(file: ModelFile, *, private: bool = False, statistics_bytes: int = READ_BYTES) -> PageData:
    """The data of a page of one file.

    Args:
        file: The file.
        private: Leave out source lines.
        statistics_bytes: How many bytes of weights to read for their statistics; 0 for none.

    Raises:
        FileFormatError: The file has no hierarchy.
    """
    with gc_paused():
        found = find_hierarchy(file)
        document = with_root_call(found.document)
        strings = StringTable()
        tables = read_tables(file.proto, document, strings, {} if private else source_lines(file.nodes))
        weights, notes = weight_table(file, tables.initializers, statistics_bytes)
        modules, calls = module_table(document, strings), call_table(document, tables.numbers, strings)
        texts = strings.texts()
        repeats = find_repeats(modules, calls, tables.graphs, tables.nodes, tables.tensors, texts)
        missing = [file.missing] if file.missing else []
        return PageData(
            file=file.path.name,
            graph_hash=file.graph_hash,
            about=_about(file, found, weights, private),
            notes=[*missing, *found.missing, *document.notes, *notes],
            strings=texts,
            modules=modules,
            calls=calls,
            graphs=tables.graphs,
            nodes=tables.nodes,
            tensors=tables.tensors,
            weights=weights,
            repeats=repeats,
            overlays=[],
        )


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
