"""Where the example inputs of a model come from."""
