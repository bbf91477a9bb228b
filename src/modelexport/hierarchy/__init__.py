"""Pure data: modules and their calls, attributions, tags, and the document that records them."""

from __future__ import annotations

from modelexport.hierarchy.attribution import Attribution, Kind
from modelexport.hierarchy.calls import ROOT_CALL, BoundaryTensor, CallId, CallTree, ModuleCall
from modelexport.hierarchy.document import (
    SCHEMA_VERSION,
    CallRecord,
    ExtractionRecord,
    HierarchyDocument,
    ModuleRecord,
    NodeRecord,
    Producer,
    TensorRecord,
)
from modelexport.hierarchy.document_codec import decode_document, document_schema, encode_document
from modelexport.hierarchy.file_check import CHECK_LEVELS, DEFAULT_CHECK_BYTES, PROBE, CheckOutcome, FileCheck
from modelexport.hierarchy.module_patterns import Boundaries, boundary_paths
from modelexport.hierarchy.modules import (
    MAX_DEPTH,
    MAX_RANK,
    MAX_SIZE,
    ROOT_PATH,
    ForwardArgument,
    ModuleInfo,
    ModuleTree,
    TensorInfo,
    ancestor_paths,
    contains,
    parent_path,
)
from modelexport.hierarchy.schemas import json_schema, or_null
from modelexport.hierarchy.size_range import SizeRange
from modelexport.hierarchy.tags import TagScheme, TagView
