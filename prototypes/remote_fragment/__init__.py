"""A prototype: fragments of a sharded queue that another server owns, used like local ones. See README.md."""
