"""Jobs on small tables of this machine, without Spark."""
