"""Views of a file: a self-contained page for browsers, drawings, and the graph format of Model Explorer."""

from __future__ import annotations

from modelexport.viewing.file_view import FORMATS, View, view
from modelexport.viewing.page_data import PageData, page_schema

__all__ = ["FORMATS", "PageData", "View", "page_schema", "view"]
