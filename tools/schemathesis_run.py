"""Send requests that schemathesis draws from the description of the HTTP side to a broker of its own.

``python tools/schemathesis_run.py [--examples 500] [--seed 7]``. Every answer has to be one that the description names,
none a fault of the server, and the server has to live on. schemathesis has a room of its own under ``.build``: its
dependencies are nothing that the project needs. ``make schemathesis`` makes it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from duobus.auth import sign_token
from duobus.testing.server import ServerProcess

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / ".build" / "schemathesis" / "bin" / "schemathesis"
DESCRIPTION = ROOT / "docs" / "reference" / "openapi.json"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
#: Without a number of its own a receive waits a minute.
REQUEST_TIMEOUT_S = 90


def run(examples: int, seed: int, limit_s: float) -> str:
    """Run it; returns what was wrong, empty when nothing was."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = folder / "tokens.json"
        client = {"ClientId": "owner", "ClientSecret": "a secret of the tests", "Roles": ["Owner"]}
        tokens.write_text(json.dumps({"Endpoint": {"Clients": [client]}}))
        options = ("--emulator", "--ephemeral", "--bearer-tokens", str(tokens))
        with ServerProcess(folder / "server", arguments=options) as server:
            url = f"http://localhost:{server.ready['http_port']}"
            token = sign_token(url, "RootManageSharedAccessKey", "SAS_KEY_VALUE", int(time.time()) + 86_400)
            command = [str(PROGRAM), "run", str(DESCRIPTION), "--url", url, "-H", f"Authorization: {token}"]
            command += ["--max-examples", str(examples), "--seed", str(seed), "--checks", CHECKS, "--mode", "all"]
            # An answer without an end.
            command += ["--exclude-path", "/$duobus/events"]
            command += ["--phases", "coverage,fuzzing", "--request-timeout", str(REQUEST_TIMEOUT_S), "--no-color"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, cwd=folder, check=False)
            if done.returncode:
                return done.stdout[-20_000:] + done.stderr[-2_000:]
            return "" if server.is_running else f"the server has ended:\n{server.log_tail()}"


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--examples", type=int, default=500, help="requests per operation")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--limit", type=float, default=7_200.0, help="seconds that it may take")
    options = parser.parse_args()
    found = run(options.examples, options.seed, options.limit)
    print(found or "no finding")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
