"""The TorchScript exporter: the graph, with the scope of each traced node."""
