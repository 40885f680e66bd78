"""``duobus pipeline``: a pipeline on Spark that one document declares."""
