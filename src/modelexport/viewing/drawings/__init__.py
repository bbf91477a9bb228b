"""Drawings of one level of a file for documents: SVG, and the DOT language of Graphviz."""

from __future__ import annotations

from modelexport.viewing.drawings.formats import as_dot, as_svg
from modelexport.viewing.drawings.level_graph import read_level

__all__ = ["as_dot", "as_svg", "read_level"]
