"""A driver of its own that captures to a table, and is killed between the table's commit and Spark's own if asked to.

Its arguments are the settings of the capture as a JSON object, and the number of the batch whose commit in the table is
the last thing that the driver does. Without a number the driver captures all, and writes the summary as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any


def main() -> None:
    from duobus.spark.jobs import capture
    from kits.spark_start import small_session

    settings: dict[str, Any] = json.loads(sys.argv[1])
    last = int(sys.argv[2]) if len(sys.argv) > 2 else None
    os.setsid()
    spark = small_session("lake driver")
    write = capture.Writer.__call__

    def killed(self: capture.Writer, frame: Any, batch_id: int) -> None:
        write(self, frame, batch_id)
        if batch_id == last:
            # With the JVM, which would otherwise learn of it.
            os.killpg(0, signal.SIGKILL)

    capture.Writer.__call__ = killed  # type: ignore[method-assign]
    told = capture.run(spark, settings)
    print(json.dumps(told, default=str), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
