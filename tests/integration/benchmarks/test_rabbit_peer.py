"""RabbitMQ as a peer: against fake programs, and against the real ones where they are installed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import rabbitmq, run
from benchmarks.load import workloads
from benchmarks.load.exchange import Limits
from benchmarks.peers import PeerError

FAKE = Path(__file__).with_name("fake_rabbit.py")
PROGRAMS = ("rabbitmq-server", "rabbitmqctl", "epmd")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs = tmp_path / "rabbitmq_server-3.10.8" / "sbin"
    programs.mkdir(parents=True)
    for name in PROGRAMS:
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" {name} "{tmp_path}" "$@"\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return tmp_path


def peer(root: Path, timeout: float = 20.0) -> rabbitmq.RabbitPeer:
    (root / "data").mkdir(exist_ok=True)
    return rabbitmq.RabbitPeer(data_root=root / "data", root=root, timeout=timeout)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # what was ended and has not been waited for by its parent still has a number
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_node_keeps_everything_of_its_own_in_its_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RABBITMQ_NODENAME", "rabbit@production")
    monkeypatch.setenv("ERL_FLAGS", "-setcookie theirs")
    rabbit = peer(root)
    try:
        rabbit.start()
        (folder,) = (root / "data").iterdir()
        environment = json.loads((root / "environment.json").read_text())
        names = [name for name in environment if name.startswith("RABBITMQ_")]
        paths = [environment[name] for name in [*names, "HOME"] if "/" in environment[name]]
        assert len(paths) >= 8
        assert all(path.startswith(f"{folder}") for path in paths)
        assert environment["RABBITMQ_NODENAME"].startswith("duobus-bench-")
        assert "ERL_FLAGS" not in environment
        assert int(environment["ERL_EPMD_PORT"]) != rabbitmq.MAPPER_PORT
        assert (folder / ".erlang.cookie").stat().st_mode & 0o777 == 0o600
        assert "quorum" in (folder / "declared").read_text()
        assert rabbit.target.address == "/amq/queue/bench"
    finally:
        rabbit.stop()


def test_nodes_of_a_cluster_share_a_cookie_and_a_port_mapper_and_join_the_first(root: Path) -> None:
    rabbit = rabbitmq.RabbitPeer(data_root=root / "data", root=root, timeout=20.0, nodes=3)
    (root / "data").mkdir()
    try:
        rabbit.start()
        (folder,) = (root / "data").iterdir()
        known = [node.environment for node in rabbit._nodes]
        assert len(set(rabbit.pids)) == len({one["RABBITMQ_MNESIA_BASE"] for one in known}) == 3
        assert (
            len({one["RABBITMQ_NODENAME"] for one in known}) == len({one["RABBITMQ_DIST_PORT"] for one in known}) == 3
        )
        assert {(one["HOME"], one["ERL_EPMD_PORT"]) for one in known} == {(str(folder), known[0]["ERL_EPMD_PORT"])}
        first, *others = [one["RABBITMQ_NODENAME"] for one in known]
        joined = [(other, word) for other in others for word in ("stop_app", f"join_cluster {first}", "start_app")]
        told = [tuple(line.split(" ", 1)) for line in (folder / "controlled").read_text().splitlines()]
        assert told[: len(joined)] == joined
        assert [(node, words.split()[0]) for node, words in told[len(joined) :]] == [(first, "eval")] * 2
        assert rabbit.target.port == rabbit._nodes[0].port
        assert rabbit.settings["queue"] == "quorum, 3 nodes, leader on the first"
        pids = rabbit.pids
    finally:
        rabbit.stop()
    assert not any(is_alive(pid) for pid in pids)


def test_a_cluster_whose_queue_is_not_on_all_nodes_is_not_measured(root: Path) -> None:
    (root / "data").mkdir()
    (root / "trouble").write_text("member")
    rabbit = rabbitmq.RabbitPeer(data_root=root / "data", root=root, timeout=20.0, nodes=3)
    try:
        with pytest.raises(PeerError, match="is on 2 nodes, not on 3"):
            rabbit.start()
    finally:
        rabbit.stop()


def test_a_stopped_node_leaves_no_process_and_no_folder(root: Path) -> None:
    rabbit = peer(root)
    rabbit.start()
    pids = [rabbit.pid, rabbit._mapper.pid]  # type: ignore[union-attr]
    assert all(is_alive(pid) for pid in pids)
    rabbit.stop()
    assert not any(is_alive(pid) for pid in pids)
    assert list((root / "data").iterdir()) == []
    with pytest.raises(PeerError, match="does not run"):
        _ = rabbit.pid


def test_a_node_that_does_not_listen_to_the_signal_is_ended(root: Path) -> None:
    rabbit = peer(root)
    rabbit.start()
    pid = rabbit.pid
    (root / "trouble").write_text("deaf")
    rabbit._timeout = 0.2
    rabbit.stop()
    assert not is_alive(pid)


@pytest.mark.parametrize(("what", "words"), [("node", "no room for another node"), ("queue", "it_is_so")])
def test_a_node_or_queue_that_fails_at_the_start_is_reported(root: Path, what: str, words: str) -> None:
    (root / "trouble").write_text(what)
    rabbit = peer(root)
    with pytest.raises(PeerError, match=words):
        rabbit.start()
    rabbit.stop()
    assert list((root / "data").iterdir()) == []


def test_a_missing_installation_says_how_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(rabbitmq.NotInstalled, match="--install-peer"):
        rabbitmq.installation(tmp_path)
    (tmp_path / "rabbitmq_server-4.0.5").mkdir()
    with pytest.raises(rabbitmq.NotInstalled, match=r"not 4\.0\.5"):
        rabbitmq.installation(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        run.main(["--install-peer"])
    assert "--peer" in capsys.readouterr().err


def missing(_root: Path = rabbitmq.INSTALL_ROOT) -> tuple[Path, str]:
    raise rabbitmq.NotInstalled("it is not there")


def test_an_installation_without_root_is_refused_in_clear_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rabbitmq, "installation", missing)
    monkeypatch.setattr(rabbitmq.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(rabbitmq.os, "geteuid", lambda: 1000)
    with pytest.raises(PeerError, match="needs root"):
        rabbitmq.install()
    monkeypatch.setattr(rabbitmq.shutil, "which", lambda _name: None)
    with pytest.raises(PeerError, match="needs apt-get"):
        rabbitmq.install()


def test_an_installation_that_fails_shows_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def refuse(command: list[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 100, "", "E: no network")

    monkeypatch.setattr(rabbitmq, "installation", missing)
    monkeypatch.setattr(rabbitmq.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(rabbitmq.os, "geteuid", lambda: 0)
    monkeypatch.setattr(rabbitmq.subprocess, "run", refuse)
    with pytest.raises(PeerError, match="E: no network"):
        rabbitmq.install()
    assert commands == [["apt-get", "update", "--quiet"]]


def test_what_is_installed_is_not_installed_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rabbitmq, "installation", lambda: (root, "3.10.8"))
    monkeypatch.setattr(rabbitmq, "_apt", lambda *_: pytest.fail("apt-get was called"))
    assert rabbitmq.install() is False


def test_a_run_with_a_peer_writes_and_prints_ratios(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "make_other", lambda _name, _options: peer(root))
    output = root / "here.json"
    duobus = f"{sys.executable} {Path(__file__).with_name('fake_duobus.py')}"
    words = ["--quick", "--peer", "rabbitmq", "--configurations", "plain", "--workloads", "A100,E1", "--startups", "0"]
    status = run.main([*words, "--duobus", duobus, "--data-root", str(root / "data"), "--output", str(output)])
    assert status == 0
    document = json.loads(output.read_text())
    (about,) = document["peers"]
    assert (about["name"], about["version"]) == ("rabbitmq-quorum", "3.10.8")
    assert about["settings"]["queue"] == "quorum, one node"
    compared = document["peer_ratios"]["rabbitmq-quorum"]["duobus-plain"]
    ratio = compared["A100"]["rate"]
    rates = [document["results"][name]["A100"]["rate"]["median"] for name in ("duobus-plain", "rabbitmq-quorum")]
    assert ratio["median"] == pytest.approx(rates[0] / rates[1])
    # the batch format is not known to the peer, so nothing is compared
    assert list(compared) == ["A100"]
    printed = capsys.readouterr().out
    assert "ratio to rabbitmq-quorum" in printed
    assert "rabbitmq-quorum 3.10.8: queue=quorum, one node" in printed


@pytest.mark.slow
def test_the_real_node_takes_and_settles_every_message(tmp_path: Path) -> None:
    try:
        rabbit = rabbitmq.RabbitPeer(data_root=tmp_path)
    except rabbitmq.NotInstalled as error:
        pytest.skip(str(error))
    try:
        rabbit.start()
        for name in ("A100", "B", "C1x1"):
            result = workloads.run(rabbit.target, workloads.parse(name, Limits(messages=500)))
            assert result.messages == 500
    finally:
        rabbit.stop()
    assert list(tmp_path.iterdir()) == []
