"""onnxruntime and the ONNX checker in a child process with limits, so that a crash or an endless loop stays there."""
