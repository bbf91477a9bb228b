"""Profiles that other tools wrote: onnxruntime, TensorRT's trtexec, OpenVINO."""
