"""Export a PyTorch model to a graph, with evidence of the module call that ran each node. Needs torch."""

from __future__ import annotations

from modelexport.capture.capture import (
    DYNAMO,
    DYNAMO_WITH_CACHES,
    TORCHSCRIPT,
    TRANSFORMERS,
    Capture,
    VariantError,
    can_export,
    is_transformers_model,
)
from modelexport.capture.data_reads import find_data_reads, why_reads_matter
from modelexport.capture.diagnosis import (
    check_forward,
    check_signature,
    failures_explained,
    find_data_dependence,
    in_one_line,
    root_cause,
)
from modelexport.capture.dynamic_axes import (
    AUTO,
    BATCH,
    SEQUENCE,
    Axis,
    DynamicAxes,
    ExampleCall,
    axes_by_input,
    axes_freed_by_torch,
    check_axes,
    describe_axes,
    dynamic_shapes,
    find_axes,
    is_dynamic,
    result_axes,
    size_step,
    varied_values,
    with_sizes_above_one,
)
from modelexport.capture.flow_boundaries import CallTensors, find_boundaries, find_crossing_tensors
from modelexport.capture.module_stack import StackEntry, call_index, read_module_stack
from modelexport.capture.module_tree import read_module_tree
from modelexport.capture.program_modules import (
    ExportedProgramModule,
    model_of_program,
    program_of,
    refuse_program,
)
from modelexport.capture.source_places import SourcePlace, find_place, module_paths, running_frames
from modelexport.capture.tracer_warnings import Specialization, library_output, recorded_warnings
