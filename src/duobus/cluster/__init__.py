"""What exists only because several servers share a catalog."""
