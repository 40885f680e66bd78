"""The process behind BrokerProcess: does what each line of JSON on its standard input asks and answers with one."""

from __future__ import annotations

import json
import sys
from typing import Any

from duobus.errors import ServiceBusError
from duobus.testing.broker import BrokerThread


def main() -> None:
    """Serve until the input ends, which it does when the test session does, however that comes about."""
    broker = BrokerThread()
    broker.start()
    _write({"result": None})
    for line in sys.stdin:
        _write(_answer(broker, json.loads(line)))
    broker.stop()


def _answer(broker: BrokerThread, request: dict[str, Any]) -> dict[str, Any]:
    try:
        if request["call"] is None:
            broker.renew()
            return {"result": None}
        return {"result": broker.call(request["call"], *request["arguments"])}
    except ServiceBusError as error:
        return {"error": type(error).__name__, "text": str(error)}


def _write(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
