"""The command line: one file a command, each parsing, making one library call and printing."""
