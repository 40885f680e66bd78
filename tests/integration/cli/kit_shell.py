"""A command line in the process of the test, which talks to a server process."""

from __future__ import annotations

import json
from typing import Any, Final

from click.testing import CliRunner, Result

from duobus.cli.main import main
from duobus.testing.server import ServerProcess

#: The key that no command may print.
KEY: Final = "SAS_KEY_VALUE"


class Shell:
    """Runs commands with the server's connection string in the environment."""

    def __init__(self, server: ServerProcess) -> None:
        self.environment: dict[str, str | None] = {"DUOBUS_CONNECTION_STRING": server.connection_string}

    def run(self, *words: str, status: int = 0, given: str | bytes = "") -> Result:
        result = CliRunner().invoke(main, words, env=self.environment, input=given)
        assert result.exit_code == status, result.output
        assert KEY not in result.output
        return result

    def record(self, *words: str) -> dict[str, Any]:
        (found,) = self.records(*words)
        return found

    def records(self, *words: str, given: str | bytes = "") -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*words, given=given).stdout.splitlines()]
