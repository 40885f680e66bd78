"""The page about sending and receiving well: its programs compile, and those that need no broker run."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "send-and-receive-well.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


class Client:
    """Stands in for the SDK's: notes what its senders are given."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.entity_name = "orders"

    def get_queue_sender(self, name: str) -> Client:
        assert name == "orders"
        return self

    async def send_messages(self, message: Any) -> None:
        self.sent.append(message)

    async def close(self) -> None:
        """Nothing is open."""


def compiled(text: str) -> Any:
    return compile(text, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("text", BLOCKS)
def test_every_program_compiles_and_what_it_imports_is_there(text: str) -> None:
    compiled(text)
    for node in ast.walk(ast.parse(text.replace("await ", ""))):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(str(node.module))
            for name in node.names:
                assert hasattr(module, name.name)


@pytest.mark.parametrize(
    ("first", "sends"), [("from duobus.ha.aio import OutboxSender", 1), ("from duobus.ha.aio import Overl", 3)]
)
def test_the_programs_that_send_do_so(first: str, sends: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = [block for block in BLOCKS if block.startswith(first)]
    client = Client()
    names = {"client": client, "ServiceBusMessage": ServiceBusMessage, "messages": [ServiceBusMessage("x")] * 3}

    async def run() -> None:
        found = eval(compiled(text), names)  # the page is ours
        if inspect.isawaitable(found):
            await found

    asyncio.run(run())
    assert len(client.sent) == sends
