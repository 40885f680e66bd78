"""Topology: the entities of a namespace as plain forms, and the steps from one set of them to another."""
