"""Client-side availability over the official SDK ``azure-servicebus``; this package does not depend on the server.

The package works with Azure and duobus alike. ``pip install duobus[ha]`` installs what it needs.
"""
