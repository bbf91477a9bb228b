"""The hierarchy of a tagged file carried onto a rewritten file."""
