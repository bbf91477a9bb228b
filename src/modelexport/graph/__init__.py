"""Questions about one ONNX graph: node ids, traversal, hash, value numbers, data flow, tensor fingerprints."""
