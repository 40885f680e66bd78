"""Prove the pair of relays at length: 10,000 requests while brokers are killed and stopped, 1 GB through a tunnel.

    make relay-proof                            all of it
    python tools/relay_proof.py --quick         as `duobus demo --part relay` does it

Prints the result as JSON, and ends with status 1 when a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from duobus.clock import Clock
from duobus_demo.progress import ConsoleWatcher
from duobus_demo.scenarios.relay import LONG, SHORT, play, relay_failures

LIMIT_S = 1_800.0


def main() -> int:
    """Play the plan, print what came of it, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1,500 requests and 8 MiB")
    plan = SHORT if parser.parse_args().quick else LONG
    with tempfile.TemporaryDirectory(prefix="duobus-relay-") as folder, ConsoleWatcher("relay") as watcher:
        result = play(Path(folder), watcher, Clock(), LIMIT_S, plan)
    print(json.dumps(result, indent=2))
    failures = relay_failures(result)
    for failure in failures:
        print(f"Failed: {failure}", file=sys.stderr)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
