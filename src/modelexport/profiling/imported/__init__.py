"""Profiles that other tools wrote: onnxruntime, TensorRT's trtexec, OpenVINO."""

from __future__ import annotations

from modelexport.profiling.imported.importer import import_profile

__all__ = ["import_profile"]
