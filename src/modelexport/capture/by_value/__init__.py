"""Evidence by value: one eager forward pass, matched to the tensors of an ONNX graph."""
