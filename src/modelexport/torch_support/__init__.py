"""Running and tracing a PyTorch model: the only package that touches private parts of torch and transformers."""
