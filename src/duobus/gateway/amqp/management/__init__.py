"""Management nodes: ``$management`` and ``$cbs``."""
