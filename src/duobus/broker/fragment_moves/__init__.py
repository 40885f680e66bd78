"""Fragment moves."""
