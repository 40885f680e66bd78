"""Moving fragments between messaging stores whose owners are different servers (decision 0070)."""
