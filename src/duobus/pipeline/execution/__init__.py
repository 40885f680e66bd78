"""The work of a pipeline on a session of Spark."""
