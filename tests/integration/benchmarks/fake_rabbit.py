"""A test double of the programs of a RabbitMQ installation, over the stub; which one it is, its own name says."""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from stub_peer import StubPeer

program = sys.argv[1]
# a test that makes the node fail writes the reason beside the programs
trouble = Path(sys.argv[2]) / "trouble"
home = Path(os.environ["HOME"])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
if program == "epmd":
    with StubPeer(port=int(sys.argv[4])):
        signal.sigwait([signal.SIGTERM])
elif program == "rabbitmqctl":
    if trouble.exists() and trouble.read_text() != "member":
        print("{error,\n  it_is_so}")
    asks_for_members = "get_type_state" in sys.argv[-1]
    if asks_for_members:
        print(2 if trouble.exists() and trouble.read_text() == "member" else 3)
    else:
        (home / "declared").write_text(" ".join(sys.argv[3:]))
    with (home / "controlled").open("a") as told:
        told.write(" ".join([os.environ["RABBITMQ_NODENAME"], *sys.argv[4:]]) + "\n")
else:
    if trouble.exists() and trouble.read_text() == "node":
        sys.exit("no room for another node")
    config = Path(os.environ["RABBITMQ_CONFIG_FILE"]).read_text()
    found = re.search(r"listeners\.tcp\.1 = 127\.0\.0\.1:(\d+)", config)
    if found is None:
        sys.exit("no port in the configuration")
    Path(os.environ["RABBITMQ_PID_FILE"]).write_text(str(os.getpid()))
    (Path(sys.argv[2]) / "environment.json").write_text(json.dumps(dict(os.environ)))
    with StubPeer(port=int(found[1])):
        signal.sigwait([signal.SIGTERM])
        if trouble.exists() and trouble.read_text() == "deaf":
            time.sleep(60)
