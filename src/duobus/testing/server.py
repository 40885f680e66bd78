"""A real ``duobus serve`` process for tests: the process handling of the demonstration, under its testing name."""

from duobus.demo.errors import DemoFailed
from duobus.demo.server_process import ServerProcess, queues_config

__all__ = ["DemoFailed", "ServerProcess", "queues_config"]
