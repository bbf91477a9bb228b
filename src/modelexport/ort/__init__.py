"""onnxruntime and the ONNX checker in a child process with limits, which contains crashes and endless loops."""

from __future__ import annotations

from modelexport.ort.idle_runner import IDLE_RUNNER
from modelexport.ort.model_checks import ModelChecks, check_file, infer_types, type_inference
from modelexport.ort.prepared_model import Array, PreparedModel, external_folder, numpy_type, prepared
from modelexport.ort.profiled_session import OPTIMIZATION_LEVELS, ProfiledSession
from modelexport.ort.runner import FileRun, Runner, require_onnxruntime
from modelexport.ort.subgraph_runs import SubgraphReceiver, run_subgraphs

__all__ = [
    "IDLE_RUNNER",
    "OPTIMIZATION_LEVELS",
    "Array",
    "FileRun",
    "ModelChecks",
    "PreparedModel",
    "ProfiledSession",
    "Runner",
    "SubgraphReceiver",
    "check_file",
    "external_folder",
    "infer_types",
    "numpy_type",
    "prepared",
    "require_onnxruntime",
    "run_subgraphs",
    "type_inference",
]
