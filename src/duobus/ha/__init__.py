"""Client-side availability over the official SDK ``azure-servicebus``; knows nothing of the server.

Works against Azure and against duobus alike. Install it with ``pip install duobus[ha]``.
"""
