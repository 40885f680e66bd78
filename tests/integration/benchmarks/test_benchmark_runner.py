"""The benchmark runner against a fake `duobus`: what it starts, measures, reports, and when it fails."""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report, run, usage
from benchmarks.load import workloads
from benchmarks.load.exchange import Limits
from benchmarks.load.link import Target
from benchmarks.load.wire import LoadError
from benchmarks.load.workloads import queue_name
from benchmarks.peers import DuobusPeer, PeerError

FAKE = f"{sys.executable} {Path(__file__).with_name('fake_duobus.py')}"


def quick(tmp_path: Path, *extra: str, command: str = FAKE) -> tuple[int, Path]:
    output = tmp_path / "results" / "here.json"
    common = ["--quick", "--duobus", command, "--data-root", str(tmp_path), "--output", str(output)]
    return run.main([*common, "--workloads", "A100,B,D", "--stall", "2", *extra]), output


def test_a_quick_run_measures_each_workload_on_each_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, output = quick(tmp_path)
    assert status == 0
    document = json.loads(output.read_text())
    assert list(document["results"]) == ["duobus-plain", "duobus-parted"]
    for results in document["results"].values():
        assert list(results) == ["A100", "B", "D"]
        assert results["A100"]["rate"]["median"] > 0
        assert results["A100"]["cpu_us"]["total"]["median"] > 0
        assert results["A100"]["rss_mb"]["median"] > 5
    assert document["startup_seconds"]["duobus-plain"]["median"] > 0
    assert document["failures"] == []
    assert "duobus-parted  B" in capsys.readouterr().out


def test_peers_come_in_the_opposite_order_in_every_second_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = [DuobusPeer(name, FAKE.split(), stores=1, partitioned=False, data_root=tmp_path) for name in "abc"]
    runner = run.Runner(peers, ["D", "B"], 1.0, 1, 1.0)
    measured: list[str] = []
    monkeypatch.setattr(runner, "_round", lambda number, name, peer: measured.append(f"{number}{name}{peer.name[-1]}"))
    runner.rounds(3, warm_up=0)
    assert " ".join(measured) == "1Da 1Db 1Dc 1Ba 1Bb 1Bc 2Dc 2Db 2Da 2Bc 2Bb 2Ba 3Da 3Db 3Dc 3Ba 3Bb 3Bc"


def test_results_name_no_path_of_the_machine(tmp_path: Path) -> None:
    _, output = quick(tmp_path, "--configurations", "plain")
    text = output.read_text()
    assert str(tmp_path) not in text
    assert str(Path(__file__).parents[3]) not in text


def test_a_run_leaves_no_data_folder_and_no_process_behind(tmp_path: Path) -> None:
    peer = DuobusPeer("plain", FAKE.split(), stores=1, partitioned=False, data_root=tmp_path)
    peer.start()
    pid = peer.pid
    assert len(list(tmp_path.iterdir())) == 1
    peer.stop()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_rule_and_key_come_from_the_ready_file(tmp_path: Path) -> None:
    peer = DuobusPeer("plain", FAKE.split(), stores=1, partitioned=False, data_root=tmp_path)
    peer.start()
    try:
        assert peer.target == Target("127.0.0.1", peer.target.port, "plain", "Root", "abc=")
    finally:
        peer.stop()


def test_a_refused_message_makes_the_run_fail_and_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, output = quick(tmp_path, "--configurations", "plain", command=f"{FAKE} --fail send")
    assert status == 1
    assert "rejected, amqp:no-room: it is so" in json.loads(output.read_text())["failures"][0]
    assert "VOID: duobus-plain A100" in capsys.readouterr().out


def test_a_broker_that_does_not_start_is_reported_with_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _ = quick(tmp_path, command=f"{FAKE} --fail start")
    assert status == 1
    assert "no room for another broker" in capsys.readouterr().err
    peer = DuobusPeer("plain", f"{FAKE} --fail start".split(), stores=1, partitioned=False, data_root=tmp_path)
    with pytest.raises(PeerError, match="ended while it started"):
        peer.start()
    peer.stop()


def test_unknown_names_on_the_command_line_are_usage_errors(tmp_path: Path) -> None:
    for extra in (["--workloads", "Z1"], ["--configurations", "none"]):
        with pytest.raises(SystemExit, match="2"):
            quick(tmp_path, *extra)


def test_the_compiled_twin_is_measured_beside_plain_python_from_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run.compile_twin, "is_fresh", lambda _twin: True)
    monkeypatch.setattr(run.compile_twin, "TWIN", tmp_path / "twin")
    (tmp_path / "twin").mkdir()
    (tmp_path / "twin" / "sitecustomize.py").write_text("import sys; sys.stderr.write('from the twin')\n")
    status, output = quick(tmp_path, "--configurations", "plain,compiled", "--workloads", "A100")
    assert status == 0
    assert json.loads(output.read_text())["compiled"]["duobus-compiled"]["A100"]["rate"]["rounds"] == 1
    assert "ratio to the same in plain Python" in capsys.readouterr().out
    for name, is_there in (("plain", False), ("compiled", True)):
        path = run.compile_twin.TWIN if is_there else None
        peer = DuobusPeer(name, FAKE.split(), stores=1, partitioned=False, data_root=tmp_path, python_path=path)
        peer.start()
        assert ("from the twin" in peer.log_tail()) is is_there
        peer.stop()


def test_a_twin_of_other_sources_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run.compile_twin, "TWIN", tmp_path / "no twin")
    with pytest.raises(SystemExit, match="2"):
        quick(tmp_path, "--configurations", "compiled")
    assert "make compile" in capsys.readouterr().err


def test_samples_are_folded_into_median_min_and_max() -> None:
    samples: list[dict[str, Any]] = [
        {"workload": "A100", "rate": 10.0, "send_p50_ms": None, "cpu_us": {"total": 4.0, "thread1": 1.0}},
        {"workload": "A100", "rate": 30.0, "send_p50_ms": None, "cpu_us": {"total": 2.0}},
        {"workload": "A100", "rate": 11.0, "send_p50_ms": None, "cpu_us": {"total": 3.0, "thread1": 2.0}},
    ]
    summary = report.summarise(samples)
    assert summary["rate"] == {"median": 11.0, "min": 10.0, "max": 30.0}
    assert summary["send_p50_ms"] is None
    assert "workload" not in summary
    assert summary["cpu_us"]["total"] == {"median": 3.0, "min": 2.0, "max": 4.0}
    assert summary["cpu_us"]["thread1"] == {"median": 1.0, "min": 0.0, "max": 2.0}


def test_the_geometric_mean_stands_under_all_five_workloads() -> None:
    one = {"rate": {"median": 8.0, "min": 1.0, "max": 9.0}, "generator_cpu_us": {"median": 1.0}}
    two = {"rate": {"median": 2.0, "min": 1.0, "max": 9.0}, "generator_cpu_us": {"median": 1.0}}
    results = {"x": {"A100": one, "A1000": two, "B": one, "C1x1": two, "C4x4": {**one, "rate": {**one["rate"]}}}}
    results["x"]["C4x4"]["rate"]["median"] = 4.0
    assert report.table(results).splitlines()[-1].split()[:3] == ["x", "mean", "4"]
    del results["x"]["B"]
    assert "mean" not in report.table(results)


def test_processor_time_is_divided_by_thread_and_message() -> None:
    before = usage.Cpu(1.0, 0.5, {7: 1.0, 8: 0.5}, at=10.0)
    after = usage.Cpu(2.0, 1.0, {7: 1.5, 8: 1.25, 9: 0.25}, at=11.0)
    figures = usage.per_message(7, before, after, 1000)
    assert figures == {
        "total": 1500.0,
        "system": 500.0,
        "main": 500.0,
        "thread1": 750.0,
        "thread2": 250.0,
        "cores": 1.5,
    }


def test_processor_time_and_memory_of_this_process_can_be_read() -> None:
    before = usage.cpu(os.getpid())
    while usage.cpu(os.getpid()).user <= before.user:
        sum(range(10_000))
    assert threading.get_native_id() in before.threads
    rss, peak = usage.memory_mb(os.getpid())
    assert 5 < rss <= peak


def test_an_earlier_commit_is_measured_in_the_same_rounds_from_sources_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run.report, "short_name", lambda _root, revision: f"short-{revision}")
    monkeypatch.setattr(run.report, "sources_of", lambda _root, revision: tmp_path / revision)
    (tmp_path / "HEAD").mkdir()
    (tmp_path / "HEAD" / "sitecustomize.py").write_text("import sys; sys.stderr.write('from the earlier commit')\n")
    options = ["--configurations", "plain", "--workloads", "A100", "--beside", "HEAD"]
    status, output = quick(tmp_path, *options)
    assert status == 0
    document = json.loads(output.read_text())
    assert list(document["results"]) == ["duobus-plain", "duobus-before-plain"]
    assert document["beside"] == "short-HEAD"
    (ratio,) = document["beside_ratios"]["duobus-plain"]["A100"]["cpu"]
    assert ratio > 0
    assert "ratio to short-HEAD" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        quick(tmp_path, "--configurations", "compiled", "--beside", "HEAD")


def test_sources_of_a_commit_are_laid_out_once_and_an_unknown_one_is_named(tmp_path: Path) -> None:
    for words in (["init", "-q"], ["config", "user.email", "a@b"], ["config", "user.name", "a"]):
        report._git(tmp_path, *words)
    package = tmp_path / "src" / "duobus"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("first = True\n")
    report._git(tmp_path, "add", "src")
    report._git(tmp_path, "commit", "-q", "-m", "first")
    (package / "__init__.py").write_text("first = False\n")
    folder = report.sources_of(tmp_path, "HEAD")
    assert (folder / "duobus" / "__init__.py").read_text() == "first = True\n"
    assert report.sources_of(tmp_path, "HEAD") == folder
    with pytest.raises(ValueError, match="no-such-commit"):
        report.short_name(tmp_path, "no-such-commit")


@pytest.mark.slow
def test_the_sdk_and_many_queues_are_measured_on_the_real_broker_which_keeps_none_of_the_queues(tmp_path: Path) -> None:
    output = tmp_path / "here.json"
    words = ["--quick", "--startups", "0", "--configurations", "plain,tls", "--workloads", "SDK1,M20,C1x1"]
    program = f"{sys.executable} -m duobus"
    assert run.main([*words, "--duobus", program, "--data-root", str(tmp_path), "--output", str(output)]) == 0
    document = json.loads(output.read_text())
    assert list(document["results"]["duobus-plain"]) == ["SDK1", "M20", "C1x1"]
    assert document["results"]["duobus-plain"]["SDK1"]["cpu_us"]["total"]["median"] > 0
    # the programs of the SDK connect without TLS
    assert list(document["results"]["duobus-tls"]) == ["M20", "C1x1"]
    assert document["tls"]["duobus-tls"]["C1x1"]["cpu"]["median"] > 0


@pytest.mark.slow
def test_the_queues_of_a_workload_are_there_for_its_time_only(tmp_path: Path) -> None:
    peer = DuobusPeer("plain", [sys.executable, "-m", "duobus"], stores=1, partitioned=False, data_root=tmp_path)
    peer.start()
    try:
        third = peer.target._replace(address=queue_name("plain", 2))
        with peer.queues(3):
            assert workloads.run(third, workloads.parse("D", Limits(messages=3))).messages == 3
        with pytest.raises(LoadError, match="not-found"):
            workloads.run(third, workloads.parse("D", Limits(messages=3)))
        with pytest.raises(PeerError, match="409"), peer.queues(3), peer.queues(1):
            pass
    finally:
        peer.stop()
