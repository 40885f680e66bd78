"""The calls of a client of 2015, azure-servicebus 0.21, unmodified: it signs and reads headers in ways of its own."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kit_samples import REQUIRED

from duobus.testing.server import ServerProcess
from kits.programs import CACHE, do_without
from kits.published import INSTALL_LIMIT_S

PACKAGE = "azure-servicebus==0.21.1"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(INSTALL_LIMIT_S + 60)]


@pytest.fixture(scope="module")
def packages() -> Path:
    """A folder with the client; made once."""
    folder = CACHE / "legacy-0.21.1"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "legacy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            command = [sys.executable, "-m", "pip", "--quiet", "install", "--target", str(partial), PACKAGE]
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False)
            if done.returncode:
                do_without(f"{PACKAGE} cannot be had: {done.stderr[-300:]}", REQUIRED)
            partial.rename(folder)
    return folder


def test_f1_14_a_legacy_client_manages_sends_receives_and_settles(packages: Path, tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).parent / "legacy_program.py"), str(server.ready["http_port"])],
            env={**os.environ, "PYTHONPATH": str(packages), "REQUESTS_CA_BUNDLE": server.ca},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    # Not to create what is there is no failure unless it is asked for.
    assert found["created"] == [True, False, True, True, True]
    assert found["queue"] == ["PT30S", 4, 0]
    queues, topics, subscriptions, rules = found["listed"]
    assert (queues, topics) == (["legacy"], ["news"])
    # It cuts names out of ids at keywords in lower case; clients of today want capitals there (rule 0.8).
    assert [name.rpartition("/")[2] for name in (*subscriptions, *rules)] == ["all", "red"]
    custom = {"priority": 'H"i', "size": "5", "real": "1.5", "flag": "True"}
    # It takes every header for a property.
    read = {name.lower(): value for name, value in found["first"].pop("custom").items()}
    assert {name: read[name] for name in custom} == custom
    assert found["first"] == {"body": "first", "type": "text/x", "label": "L", "ttl": 60, "count": 1}
    assert (found["again"]["body"], found["again"]["count"]) == ("first", 2)
    assert found["late"] == ["AzureMissingResourceHttpError", 404]
    assert (found["second"], found["empty"]) == ("second", True)
    assert (found["news"], found["no more"]) == ("red", True)
    assert found["conflict"] == ["AzureConflictHttpError", 409]
    assert found["missing"] == ["AzureMissingResourceHttpError", 404]
    assert found["nowhere"][1] == 410
    assert found["deleted"] == [True, True, True, True, False]
