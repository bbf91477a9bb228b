"""Run and trace a PyTorch model: the only package that uses private APIs of torch and transformers."""

from __future__ import annotations

from modelexport.torch_support.call_watch import CallWatch, RunningCall, in_this_thread, own_calls_through
from modelexport.torch_support.control_flow_watch import ControlFlowWatch, FunctionObserver, control_flow_depth
from modelexport.torch_support.example_inputs import check_model, copied_inputs, exporter_arguments, normalize_inputs
from modelexport.torch_support.state_guard import (
    TORCH_LOCK,
    CopyOnWrite,
    buffers_restored,
    evaluation_mode,
    full_float32_precision,
    isolated_run,
    mha_fast_path_disabled,
    preserved_state,
    weights_restored,
)
from modelexport.torch_support.tensor_paths import (
    flattened_names,
    flattened_results,
    named_arguments,
    named_results,
    tensors_in,
)
