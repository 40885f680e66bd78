"""Files of whole messages: exported as JSON lines or Parquet, and sent again."""
