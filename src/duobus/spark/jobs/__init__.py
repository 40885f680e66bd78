"""Jobs over the data source: plain PySpark programs, each ``run(spark, cfg)``, also as ``duobus spark <job>``."""
