"""A file and its hierarchy checked against a table of rules."""
