"""Pure data: modules and their calls, attributions, tags, and the document that records them."""
