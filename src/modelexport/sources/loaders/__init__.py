"""Where models come from: one loader for each kind of reference."""
