"""``duobus key``: access rules and their keys."""
