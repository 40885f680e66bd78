"""A test double of the `duobus` program: `serve` with the options that the benchmark runner gives, over the stub."""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from stub_peer import Habits, StubPeer

parser = argparse.ArgumentParser()
parser.add_argument("word", choices=["serve"])
for option in ("--data", "--config", "--ready-file", "--port", "--http-port", "--stores"):
    parser.add_argument(option, required=True)
parser.add_argument("--emulator", action="store_true")
parser.add_argument("--fail", choices=["start", "send"])
options = parser.parse_args(sys.argv[1:] if sys.argv[1] == "serve" else [*sys.argv[3:], *sys.argv[1:3]])

print("the fake broker starts", flush=True)
if options.fail == "start":
    sys.exit("no room for another broker")
queue = json.loads(Path(options.config).read_text())["UserConfig"]["Namespaces"][0]["Queues"][0]
if queue["Properties"]["EnablePartitioning"] != (options.stores == "4" or queue["Name"] == "parted"):
    sys.exit("a queue over four stores is partitioned, and one that is called so")
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with StubPeer(Habits(reject_from=50 if options.fail == "send" else None)) as peer:
    ready = {
        "pid": os.getpid(),
        "amqp_port": peer.port,
        "connection_string": "Endpoint=sb://localhost;SharedAccessKeyName=Root;SharedAccessKey=abc=;",
    }
    Path(options.ready_file).write_text(json.dumps(ready))
    signal.sigwait([signal.SIGTERM])
