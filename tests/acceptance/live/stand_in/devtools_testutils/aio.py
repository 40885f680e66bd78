"""The asynchronous names."""

from . import recorded_by_proxy as recorded_by_proxy_async

__all__ = ["recorded_by_proxy_async"]
