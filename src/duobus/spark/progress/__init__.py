"""Progress of streaming queries for monitoring: to Prometheus, to a file, and to Python's logging.

Call ``watch`` once after the session was made; the figures of all queries of the session are kept from then on.
"""

from __future__ import annotations

from duobus.spark.progress.listener import ProgressListener, watch

__all__ = ["ProgressListener", "watch"]
