"""Helpers that tests of several folders share. Helpers of one folder stand beside its tests."""
