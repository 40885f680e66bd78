"""The document of a pipeline: what it may say, and what is wrong with it."""
