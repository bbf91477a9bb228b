"""Load a `.pt2` file of `torch.export.save` without running code of the file."""

from __future__ import annotations

from modelexport.sources.loaders.pt2.program_loader import load_exported_program

__all__ = ["load_exported_program"]
