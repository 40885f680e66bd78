"""The management API: Atom XML over HTTP (HTTP contract, part A)."""
