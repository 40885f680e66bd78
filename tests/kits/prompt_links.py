"""The SDK looks more often whether a link is open; import this where many links are opened.

It looks every 50 ms, some nine times for each link: for the credentials, the session, and each end of two links. Each
query and each task of Spark opens links of its own, so that half of the time of Spark's tests went by in these waits.
"""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any, Final

from azure.servicebus import _servicebus_receiver, _servicebus_sender

_LOOK_S: Final = 0.002


class _PromptTime(ModuleType):
    """The module ``time`` with shorter pauses."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    @staticmethod
    def sleep(seconds: float) -> None:
        """Sleep for a shorter time."""
        time.sleep(min(seconds, _LOOK_S))


for _module in (_servicebus_receiver, _servicebus_sender):
    setattr(_module, "time", _PromptTime("time"))  # noqa: B010 - mypy knows the module's own
