"""A name that tests import."""


class ResourceManagementClient:
    """``live_resources.Resources`` stands for it."""
