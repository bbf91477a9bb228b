"""ONNX graphs run in onnxruntime, outside of this process."""
