"""Pipelines on Spark, each declared in one document: what is read, how it is changed, where it goes, and when.

``document`` reads and checks the document without Spark, ``state_folder`` keeps what happened, ``schedule`` decides
which stage is due, and ``execution`` does the work on a session of Spark.
"""
