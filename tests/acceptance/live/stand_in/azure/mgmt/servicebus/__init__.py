"""A name that tests import."""


class ServiceBusManagementClient:
    """``live_resources.Resources`` stands for it."""
