"""Where Spark finds the format ``duobus``: it imports every module named ``pyspark_*`` and takes ``DefaultSource``.

One such module that fails to be imported disables all of them, so nothing heavy is imported here but what the class
needs: neither the SDK nor pyarrow.
"""

from duobus.spark.data_source import DuobusDataSource as DefaultSource

__all__ = ["DefaultSource"]
