"""Prometheus itself reads two brokers, and answers every query of the dashboard and of the alert rules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit_watch_files import ALERTS, CASES, SCRAPES, Query, filled_in, needs_prometheus, queries, rules, variables

from duobus.cli.remote import Remote, operate
from duobus.testing.ports import HeldPort
from duobus.testing.server import ServerProcess

# One worker has all of them: the others need no Prometheus and no brokers then.
pytestmark = [needs_prometheus, pytest.mark.slow, pytest.mark.xdist_group("prometheus")]

#: The range over which rates are taken: many readings, and short.
WINDOW = "6s"
#: Queries to which servers as these have no answer: there is one server, without certificates, and load is too short
#: for keys to be skewed; no relay is there. Whether the metrics exist is for the test of the files.
WITHOUT_ANSWER = {
    "Relays: listeners, joined and waiting senders",
    "Relays: requests and refusals",
    "Certificate's days left",
    "Leases lost, beats missed",
    "Passed to other servers",
    "Servers over one catalog",
    "Skew of keys",
    # Only what is there is shown.
    "Restarts",
    # No Spark runs beside these brokers.
    *(query.title for query in queries() if query.title.startswith("Spark: ")),
}
QUEUES = [
    {"Name": "orders", "Properties": {"EnablePartitioning": True}},
    {"Name": "failing", "Properties": {"MaxDeliveryCount": 1}},
    {"Name": "contoso/x-servicebus-transfer/0", "Properties": {}},
    {"Name": "idle", "Properties": {}},
]
CONFIG = {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": QUEUES}]}}


class Prometheus:
    """A Prometheus of its own, with the rules of the project."""

    def __init__(self, folder: Path, targets: list[str]) -> None:
        self._folder = folder
        self._port = HeldPort()
        self.url = f"http://127.0.0.1:{self._port.number}"
        group = yaml.safe_load(SCRAPES.read_text())
        group["global"] = {"scrape_interval": "250ms", "evaluation_interval": "500ms"}
        group["rule_files"] = [str(ALERTS)]
        group["scrape_configs"][0]["static_configs"] = [{"targets": targets}]
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(group))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Prometheus:
        command = [
            "prometheus",
            f"--config.file={self._folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self._folder / 'tsdb'}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
        ]
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        until(lambda: self._is_ready(), "Prometheus to be ready", 30)
        return self

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=60) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(60)

    def get(self, path: str, **query: str) -> Any:
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=60) as one:
                return json.load(one)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from None

    def ask(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=filled_in(expression, WINDOW))["result"]
        return found

    def number(self, expression: str) -> float:
        (found,) = self.ask(expression)
        return float(found["value"][1])

    def alerts(self) -> set[tuple[str, str]]:
        return {(one["labels"]["alertname"], one["labels"]["instance"]) for one in self.get("alerts")["alerts"]}


def until(is_so: Callable[[], bool], what: str, limit_s: float = 60) -> None:
    end_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end_s, f"waited in vain for {what}"
        time.sleep(0.1)


class Load:
    """A process of clients."""

    def __init__(self, connection_string: str) -> None:
        self._environment = {**os.environ, "LOAD_ON": connection_string}

    def __enter__(self) -> Load:
        program = Path(__file__).parent / "program_load.py"
        self._process = subprocess.Popen(
            [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=self._environment
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, ServerProcess, ServerProcess]]:
    """Prometheus over a broker under load and an empty one."""
    busy = ServerProcess(
        tmp_path_factory.mktemp("busy"), config=CONFIG, arguments=("--emulator", "--stores", "2", "--allow-drills")
    )
    empty = ServerProcess(tmp_path_factory.mktemp("empty"), arguments=("--emulator", "--stores", "1"))
    with busy, empty:
        targets = [address(busy), address(empty)]
        with Load(busy.connection_string), Prometheus(tmp_path_factory.mktemp("prometheus"), targets) as prometheus:
            until(lambda: len(prometheus.ask("up == 1")) == 2, "both brokers to be read")
            seen = 'duobus_messages{state="dead-letter",entity="failing"} > 3'
            until(lambda: bool(prometheus.ask(seen)), "dead letters", 60)
            yield prometheus, busy, empty


def address(server: ServerProcess) -> str:
    return f"localhost:{server.ready['http_port']}"


@pytest.mark.parametrize("query", queries(), ids=lambda query: query.title)
def test_every_query_of_the_dashboard_is_answered_under_load(
    watched: tuple[Prometheus, ServerProcess, ServerProcess], query: Query
) -> None:
    prometheus, *_ = watched
    if query.title in WITHOUT_ANSWER:
        assert prometheus.ask(query.expression) == []
        return
    until(lambda: bool(prometheus.ask(query.expression)), f"an answer to {query.expression}")
    for found in prometheus.ask(query.expression):
        assert found["value"][1] not in {"+Inf", "-Inf"}


@pytest.mark.parametrize("variable", variables(), ids=lambda query: query.title)
def test_every_variable_of_the_dashboard_has_values(
    watched: tuple[Prometheus, ServerProcess, ServerProcess], variable: Query
) -> None:
    prometheus, busy, empty = watched
    selector, _, label = variable.expression.removeprefix("label_values(").removesuffix(")").rpartition(",")
    values = prometheus.get(f"label/{label.strip()}/values", **{"match[]": filled_in(selector, WINDOW)})
    wanted = {"instance": {address(busy), address(empty)}, "namespace": {"sbemulatorns"}, "entity": {"orders"}}
    assert wanted[variable.title] <= set(values)


def test_the_numbers_are_those_of_the_load(watched: tuple[Prometheus, ServerProcess, ServerProcess]) -> None:
    prometheus, busy, empty = watched
    sent = 'sum(rate(duobus_metered_messages_total{instance="%s",kind="send"}[6s]))'
    until(lambda: bool(prometheus.ask(f"{sent % address(busy)} > 1")), "a rate of more than one message a second")
    # The empty one has metered nothing at all.
    assert prometheus.ask(sent % address(empty)) == []
    assert prometheus.number(f'duobus_connections{{instance="{address(empty)}"}}') == 0
    assert prometheus.number(f'duobus_connections{{instance="{address(busy)}"}}') > 0


def test_every_alert_rule_is_evaluated_without_an_error(
    watched: tuple[Prometheus, ServerProcess, ServerProcess],
) -> None:
    prometheus, *_ = watched

    def evaluated() -> list[Any]:
        return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]

    until(lambda: all(rule["health"] == "ok" for rule in evaluated()), "all rules to be evaluated")
    assert {rule["name"] for rule in evaluated()} == {rule["alert"] for rule in rules()}
    assert not [rule for rule in evaluated() if rule.get("lastError")]


def test_alerts_begin_for_what_happens_and_end_with_it_across_a_restart(
    watched: tuple[Prometheus, ServerProcess, ServerProcess],
) -> None:
    prometheus, busy, empty = watched
    here = address(busy)
    until(lambda: ("DuobusDeadLettersGrow", here) in prometheus.alerts(), "the alert of dead letters")
    assert ("DuobusPairBacklog", here) in prometheus.alerts()
    assert ("DuobusDown", here) not in prometheus.alerts()
    remote = Remote(busy.connection_string, None, None)
    operate(remote, "POST", "stores/2/fail")
    until(lambda: ("DuobusStoreAway", here) in prometheus.alerts(), "the alert of a store that is away")
    until(lambda: ("DuobusFragmentsAway", here) in prometheus.alerts(), "the alert of fragments that are away")
    operate(remote, "POST", "stores/2/heal")
    until(lambda: ("DuobusStoreAway", here) not in prometheus.alerts(), "the end of that alert")
    busy.kill()
    until(lambda: ("DuobusDown", here) in prometheus.alerts(), "the alert of a server that is gone")
    busy.start()
    until(lambda: ("DuobusDown", here) not in prometheus.alerts(), "the end of that alert")
    # Counters began again at nothing, and no rate is below it.
    rate = f'sum(rate(duobus_metered_messages_total{{instance="{here}",kind="send"}}[6s]))'
    until(lambda: bool(prometheus.ask(rate)) and prometheus.number(rate) > 0, "the load to go on")
    assert prometheus.ask(f'rate(duobus_metered_messages_total{{instance="{here}"}}[30s]) < 0') == []
    # How fast commits are is the disk's matter, which other tests may keep busy meanwhile.
    told = {name for name, instance in prometheus.alerts() if instance == address(empty)}
    assert told <= {"DuobusCommitsSlow"}


def test_the_rules_pass_promtool_with_a_case_for_each_alert(tmp_path: Path) -> None:
    for words in (["check", "rules", str(ALERTS)], ["check", "config", str(SCRAPES)], ["test", "rules", str(CASES)]):
        done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", [rule["alert"] for rule in rules()])
def test_the_cases_notice_an_alert_that_never_fires(tmp_path: Path, name: str) -> None:
    changed = yaml.safe_load(ALERTS.read_text())
    for group in changed["groups"]:
        for rule in group["rules"]:
            if rule["alert"] == name:
                rule["expr"] = "vector(1) == 2"
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(changed))
    cases = yaml.safe_load(CASES.read_text())
    cases["rule_files"] = ["alerts.yaml"]
    # The cases that name the alert have to notice; all the others cost promtool a second of the processor.
    cases["tests"] = [case for case in cases["tests"] if name in json.dumps(case)]
    assert cases["tests"]
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(cases))
    done = subprocess.run(
        ["promtool", "test", "rules", "cases.yaml"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
