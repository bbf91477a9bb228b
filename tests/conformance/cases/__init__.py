"""One file for each known failure of provenance: models, inputs, and what must be true of their files."""
