"""The TorchScript exporter: the graph, with the module call in the scope of each traced node."""

from __future__ import annotations

from modelexport.capture.torchscript.jit_exporter import capture_with_torchscript
