"""The document of the pipeline that the part ``spark`` runs, with its statement of SQL and its module of Python."""
