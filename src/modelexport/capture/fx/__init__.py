"""Exporters that go through `torch.export`: the graph, with module calls seen while torch traces."""
