"""The command line: one module per command; each parses options, calls the library once and prints the result."""
