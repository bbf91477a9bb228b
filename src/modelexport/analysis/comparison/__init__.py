"""What differs between two files, by module and structure."""
