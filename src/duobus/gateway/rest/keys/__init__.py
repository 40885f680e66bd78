"""Access rules and their keys over HTTP."""
