"""The wire doors."""
