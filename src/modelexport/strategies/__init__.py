"""Where the evidence of an export comes from: one strategy each, a table of them, and the choice among them."""
