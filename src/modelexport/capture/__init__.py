"""From a PyTorch model to a graph and the evidence of who ran each of its nodes. Needs torch."""

from __future__ import annotations

from modelexport.capture.capture import Capture
from modelexport.capture.data_reads import find_data_reads
from modelexport.capture.diagnosis import check_forward, check_signature, explain_failure, in_one_line, root_cause
from modelexport.capture.dynamic_axes import (
    AUTO,
    BATCH,
    Axis,
    Call,
    DynamicAxes,
    axes_by_input,
    axes_torch_keeps,
    check_axes,
    describe_axes,
    dynamic_shapes,
    find_axes,
    tied_axes,
    widened,
)
from modelexport.capture.exporter_names import DYNAMO, DYNAMO_WITH_CACHES, TORCHSCRIPT, TRANSFORMERS
from modelexport.capture.flow_boundaries import TracedSide, find_boundaries, find_crossings
from modelexport.capture.model_library import can_export, is_transformers_model
from modelexport.capture.module_tree import qualified_name, read_module_tree
from modelexport.capture.program_modules import (
    ExportedProgramModule,
    model_of_program,
    module_stack,
    program_of,
    refuse_program,
)
from modelexport.capture.specialization import Specialization
from modelexport.capture.tracer_warnings import recorded_warnings

__all__ = [
    "AUTO",
    "BATCH",
    "DYNAMO",
    "DYNAMO_WITH_CACHES",
    "TORCHSCRIPT",
    "TRANSFORMERS",
    "Axis",
    "Call",
    "Capture",
    "DynamicAxes",
    "ExportedProgramModule",
    "Specialization",
    "TracedSide",
    "axes_by_input",
    "axes_torch_keeps",
    "can_export",
    "check_axes",
    "check_forward",
    "check_signature",
    "describe_axes",
    "dynamic_shapes",
    "explain_failure",
    "find_axes",
    "find_boundaries",
    "find_crossings",
    "find_data_reads",
    "in_one_line",
    "is_transformers_model",
    "model_of_program",
    "module_stack",
    "program_of",
    "qualified_name",
    "read_module_tree",
    "recorded_warnings",
    "refuse_program",
    "root_cause",
    "tied_axes",
    "widened",
]
