"""One module call as an ONNX model of its own."""
