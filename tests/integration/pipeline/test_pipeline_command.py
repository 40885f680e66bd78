"""``duobus pipeline`` as it is typed, as far as it goes without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from duobus.cli.main import main
from duobus.pipeline.state_folder import StateFolder

DOCUMENT = """\
name = "shop"
state = "state"

[connections.shop]
connectionStringEnv = "SHOP_BUS"

[sources.incoming]
queue = "orders"

[tables.orders]
path = "lake/orders"

[stages.capture]
from = "incoming"
to = "orders"
trigger = "10s"
"""

#: Holds the lock as a run does, until SIGTERM.
HOLDER = """
import signal, sys
from pathlib import Path
from duobus.pipeline.state_folder import StateFolder
with StateFolder(Path(sys.argv[1])).lock({"since": "noon"}):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("held", flush=True)
    signal.pause()
"""


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "shop.toml"
    path.write_text(DOCUMENT)
    return path


def call(*words: object) -> Result:
    return CliRunner().invoke(main, ["pipeline", *map(str, words)])


def test_a_good_document_is_told_so_and_a_broken_one_line_by_line(document: Path) -> None:
    good = call("validate", document)
    assert (good.exit_code, "1 stage and no fault" in good.output) == (0, True)
    assert json.loads(call("validate", "--json", document).output)["stages"] == ["capture"]
    document.write_text(DOCUMENT.replace("orders", "Orders", 1).replace('trigger = "10s"', 'tigger = "10s"'))
    for words in (["validate"], ["plan"], ["run", "--once"]):
        broken = call(*words, document)
        assert broken.exit_code == 1
        assert broken.stderr.splitlines() == [
            "shop.toml:16: stages.capture.tigger: There is no key 'tigger' here. Did you mean 'trigger'?",
            f"Error: 1 fault in {document}.",
        ]


def test_the_plan_is_told_without_a_connection(document: Path) -> None:
    lines = call("plan", document).output.splitlines()
    assert lines[1].split() == [
        "capture",
        "capture",
        "every",
        "10",
        "s",
        "orders",
        "(claim)",
        "table",
        "orders",
        "begins",
    ]
    (stage,) = json.loads(call("plan", "--json", document).output)["stages"]
    assert (stage["reads"], stage["writes"], stage["next"]) == (["orders (claim)"], "table orders", "begins")


def test_the_status_is_told_of_a_document_and_of_a_folder(document: Path) -> None:
    missing = call("status", document)
    assert (missing.exit_code, "No pipeline has run with the state" in missing.stderr) == (1, True)
    state = StateFolder(document.parent / "state")
    state.folder.mkdir()
    state.write_overview(
        {"pipeline": "shop", "stages": [{"stage": "capture", "job": "capture", "trigger": "every 10 s"}]}
    )
    state.stage("capture").tell({"state": "failed", "batch": 3, "error": "Nobody answers."})
    for place in (document, state.folder):
        told = call("status", place).output
        assert told.startswith("shop: not running\n")
        assert "Nobody answers." in told
        (stage,) = json.loads(call("status", "--json", place).output)["stages"]
        assert (stage["state"], stage["batch"], stage["rows"]) == ("failed", 3, None)


def test_a_pipeline_that_runs_is_stopped_and_a_second_run_of_it_is_refused(
    document: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A run adds its folder, for the processes that Spark starts.
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    assert call("stop", document).output == "The pipeline does not run.\n"
    state = document.parent / "state"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(state)], stdout=subprocess.PIPE, env=os.environ)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        second = call("run", document)
        assert second.exit_code == 1
        assert f"The pipeline is run already, by process {holder.pid} on" in second.stderr
        assert call("stop", document).output == "The pipeline has stopped.\n"
        assert holder.wait(20) == 0
    finally:
        holder.kill()
        holder.communicate()
