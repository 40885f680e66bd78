"""Artemis as a peer where nothing has to run: what is missing, how it is started, what stands beside its figures."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import artemis_peer, run
from benchmarks.artemis_peer import ArtemisPeer
from benchmarks.peers import PeerError


@pytest.mark.parametrize("tool", ["java", "javac", "mvn"])
def test_a_missing_tool_is_named_with_what_to_do(tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == tool else f"/usr/bin/{name}")
    with pytest.raises(artemis_peer.NotBuilt, match=rf"^{tool} is not on PATH: .*apt-get install"):
        artemis_peer.build(build_root=tmp_path)


class Tools:
    """Maven and javac that only write down how they were called."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[list[str]] = []
        self._fails = fails

    def run(self, command: list[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        self.calls.append(command)
        return subprocess.CompletedProcess(command, int(command[0] == self._fails), "", "it is so")


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Tools:
    fake = Tools()
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(artemis_peer.subprocess, "run", fake.run)
    return fake


def test_the_program_is_built_once_for_each_version_of_its_sources(tools: Tools, tmp_path: Path) -> None:
    sources = shutil.copytree(artemis_peer.SOURCES, tmp_path / "sources")
    first = artemis_peer.build(sources, tmp_path / "build")
    assert [call[0] for call in tools.calls] == ["mvn", "javac"]
    assert artemis_peer.build(sources, tmp_path / "build") == first
    assert len(tools.calls) == 2
    (sources / "ArtemisPeer.java").write_text("// another one")
    assert artemis_peer.build(sources, tmp_path / "build") != first
    assert len(tools.calls) == 4


@pytest.mark.parametrize(("tool", "words"), [("mvn", "Artemis cannot be had"), ("javac", "javac failed")])
def test_a_build_that_fails_leaves_nothing_and_says_what_was_said(
    tool: str, words: str, tools: Tools, tmp_path: Path
) -> None:
    tools._fails = tool
    with pytest.raises(artemis_peer.NotBuilt, match=f"{words}.*\nit is so"):
        artemis_peer.build(build_root=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_pinned_version_stands_in_the_project_file() -> None:
    text = (artemis_peer.SOURCES / "pom.xml").read_text()
    assert text.count("<version>2.44.0</version>") == 2
    assert "http" not in text.replace("http://maven.apache.org/POM/4.0.0", "")


def test_every_setting_is_given_to_the_program_and_printed(tmp_path: Path) -> None:
    peer = ArtemisPeer(data_root=tmp_path, program=tmp_path, name="artemis-aio")
    settings = peer.settings
    assert settings["journal"] == "ASYNCIO"
    assert ArtemisPeer(data_root=tmp_path, program=tmp_path).settings["journal"] == "NIO"
    assert settings.items() >= artemis_peer.SETTINGS.items()
    assert settings["fdatasync"] == "true"
    assert "-Xmx2g" in settings["jvm"]
    command = artemis_peer.command_of(tmp_path, Path("data"), Path("ready"), {"journal": "NIO", "epoll": "true"})
    assert command[0] == "java"
    assert command[-5:] == ["ArtemisPeer", "data", "ready", "journal=NIO", "epoll=true"]
    printed = "\n".join(run._in_words(peer))
    assert all(f"{name}={value}" in printed for name, value in settings.items())
    assert "answers no settlement of a receiver" in printed


def test_the_java_program_reads_each_setting_that_it_is_given() -> None:
    text = (artemis_peer.SOURCES / "ArtemisPeer.java").read_text()
    for name in ("journal", *artemis_peer.SETTINGS):
        assert f'given.get("{name}")' in text


def test_what_artemis_does_not_know_is_left_out(tmp_path: Path) -> None:
    peer = ArtemisPeer(data_root=tmp_path, program=tmp_path)
    left_out = ["S4x4", "E10", "SDK1"]
    assert [
        name
        for name in ("A100", "A1000", "B", "C1x1", "C4x4", "S4x4", "D", "E10", "SDK1", "M1000")
        if not peer.supports(name)
    ] == left_out
    with pytest.raises(PeerError, match="does not speak Service Bus"):
        peer.connection_string()
    with pytest.raises(PeerError, match="does not run"):
        _ = peer.pid


def test_several_peers_are_named_once_each_and_in_their_order() -> None:
    words = ["--configurations", "plain,tls,ephemeral", "--workloads", "SDK1,M1000"]
    options = run._options([*words, "--peer", "artemis", "--peer", "rabbitmq", "--peer", "artemis"])
    assert options.peer == ["artemis", "rabbitmq"]
    assert [peer.name for peer in options.peers] == ["duobus-plain", "duobus-tls", "duobus-ephemeral"]
    assert [peer.supports("SDK1") for peer in options.peers] == [True, False, True]


def test_installing_a_peer_needs_the_one_that_can_be_installed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run._options(["--install-peer", "--peer", "artemis"])
    assert "give --peer rabbitmq, too" in capsys.readouterr().err
