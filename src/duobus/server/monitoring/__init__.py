"""A running server as operators see it: metrics, the overview for HTTP, metering, and keys that favour one fragment."""
