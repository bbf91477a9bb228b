"""Files: written all or nothing, read under limits, with the hierarchy in three stores."""

from __future__ import annotations

from modelexport.storage.atomic_text import check_text_target, staged_text, write_text
from modelexport.storage.document_builder import build_document, tensor_records
from modelexport.storage.finished_file import FinishedFile, read_finished, write_finished
from modelexport.storage.inline_writer import save_inline
from modelexport.storage.loaded_model import LoadedModel, build_ir, load
from modelexport.storage.metadata_stores import (
    NodeStores,
    has_node_properties,
    read_node_stores,
    read_sidecar,
    remove_source_references,
    strip_hierarchy,
    write_stores,
)
from modelexport.storage.opened_file import ModelFile, existing_file, hash_file, read_model, read_proto
from modelexport.storage.recovery import find_hierarchy, recover_document
from modelexport.storage.transaction import Staging, check_target, data_file_name, data_files, sidecar_path, stage_files
from modelexport.storage.untrusted_checks import DataFolder, tensor_bytes
from modelexport.storage.wire_format import ExporterFile

__all__ = [
    "DataFolder",
    "ExporterFile",
    "FinishedFile",
    "LoadedModel",
    "ModelFile",
    "NodeStores",
    "Staging",
    "build_document",
    "build_ir",
    "check_target",
    "check_text_target",
    "data_file_name",
    "data_files",
    "existing_file",
    "find_hierarchy",
    "has_node_properties",
    "hash_file",
    "load",
    "read_finished",
    "read_model",
    "read_node_stores",
    "read_proto",
    "read_sidecar",
    "recover_document",
    "remove_source_references",
    "save_inline",
    "sidecar_path",
    "stage_files",
    "staged_text",
    "strip_hierarchy",
    "tensor_bytes",
    "tensor_records",
    "write_finished",
    "write_stores",
    "write_text",
]
