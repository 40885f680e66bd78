"""Links that another server answers through this one."""
