"""Views of a file: a self-contained page for browsers, drawings, and the graph format of Model Explorer."""
