"""Files: written all or nothing, read under limits, with the hierarchy in three stores."""

from __future__ import annotations

from modelexport.storage.atomic_text import check_text_target, staged_text, write_text
from modelexport.storage.document_builder import build_document, tensor_records
from modelexport.storage.exporter_scopes import read_name_scope
from modelexport.storage.external_data import DataFolder, tensor_bytes
from modelexport.storage.inline_writer import save_inline, write_tensor
from modelexport.storage.metadata_stores import (
    NodeStores,
    has_node_properties,
    read_node_stores,
    read_sidecar,
    remove_hierarchy,
    remove_source_references,
    source_line,
    strip_hierarchy,
    write_stores,
)
from modelexport.storage.opened_file import (
    LoadedModel,
    ModelFile,
    build_ir,
    load,
    read_model,
    read_proto,
)
from modelexport.storage.recovery import Recovered, find_hierarchy, recover_document
from modelexport.storage.transaction import Staging, check_target, data_file_name, data_files, sidecar_path, stage_files
from modelexport.storage.untagged_file import UntaggedFile, read_untagged, write_tagged
from modelexport.storage.untrusted_checks import check_functions, external_tensors
from modelexport.storage.weight_reader import WeightReader, content_bytes
from modelexport.storage.wire_format import ExporterFile

__all__ = [
    "DataFolder",
    "ExporterFile",
    "LoadedModel",
    "ModelFile",
    "NodeStores",
    "Recovered",
    "Staging",
    "UntaggedFile",
    "WeightReader",
    "build_document",
    "build_ir",
    "check_functions",
    "check_target",
    "check_text_target",
    "content_bytes",
    "data_file_name",
    "data_files",
    "external_tensors",
    "find_hierarchy",
    "has_node_properties",
    "load",
    "read_model",
    "read_name_scope",
    "read_node_stores",
    "read_proto",
    "read_sidecar",
    "read_untagged",
    "recover_document",
    "remove_hierarchy",
    "remove_source_references",
    "save_inline",
    "sidecar_path",
    "source_line",
    "stage_files",
    "staged_text",
    "strip_hierarchy",
    "tensor_bytes",
    "tensor_records",
    "write_stores",
    "write_tagged",
    "write_tensor",
    "write_text",
]
