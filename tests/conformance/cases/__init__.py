"""One module for each known way to lose the owners of nodes: models, inputs, and the owners they must have."""
