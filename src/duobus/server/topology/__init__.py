"""Entities of the configuration file: what a start creates, changes and deletes so that they are as the file says."""
