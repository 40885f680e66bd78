"""Programs over the data source; each is a function ``run(spark, config)`` that returns a summary fit for JSON."""
