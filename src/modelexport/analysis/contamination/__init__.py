"""Nodes owned by a module call that did not run them, found from the file alone."""
