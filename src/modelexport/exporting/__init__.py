"""The export path as a list of steps: export a model, tag a finished file, export generation stages."""
