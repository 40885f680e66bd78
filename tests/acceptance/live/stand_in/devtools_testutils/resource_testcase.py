"""The name under which a resource group is given to a test."""

RESOURCE_GROUP_PARAM = "resource_group"
