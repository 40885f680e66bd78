"""How messages reach receivers: credit, sessions and session groups."""
