"""The load generator against the stub: it counts right, obeys the peer, and fails loudly."""

import ssl
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from stub_peer import Habits, StubPeer

from benchmarks.load import workloads
from benchmarks.load.__main__ import main
from benchmarks.load.exchange import Exchange, Limits
from benchmarks.load.link import Target
from benchmarks.load.message import MARKS, Run
from benchmarks.load.receiver import Receiver
from benchmarks.load.sender import Sender
from benchmarks.load.wire import LoadError
from duobus.clock import Clock, Entropy
from duobus.gateway.tls import SelfSigned

RARE = Habits(rare_encoding=True, ranged=False, credit=40, window=30)
SPLITTING = Habits(frame_payload=300)
SPLITTING_RARELY = Habits(frame_payload=300, rare_encoding=True)


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Make an authority and a server's certificate of it; returns the authority's file and the server's context."""
    files = SelfSigned(folder, Clock(), Entropy()).ensure(["localhost"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    return files.authority, context


def measure(peer: StubPeer, name: str, messages: int) -> workloads.Result:
    return workloads.run(peer.target(), workloads.parse(name, Limits(messages=messages, stall=2.0)))


@pytest.mark.parametrize(
    "habits", [Habits(), RARE, SPLITTING, SPLITTING_RARELY], ids=["plain", "rare", "split", "both"]
)
@pytest.mark.parametrize("name", ["A100", "A1000", "B", "C1x1", "C4x4", "D", "E2"])
def test_every_workload_moves_each_message_once_and_leaves_the_queue_empty(name: str, habits: Habits) -> None:
    if name == "E2" and habits.window < 1000:
        habits = replace(habits, window=1000)
    with StubPeer(habits) as peer:
        result = measure(peer, name, 700)
        assert result.messages == 700
        assert peer.stored == 700
        assert not peer.queue
        assert result.rate == pytest.approx(700 / result.seconds)


def test_a_timed_run_stops_sending_when_its_time_is_over() -> None:
    with StubPeer() as peer:
        result = workloads.run(peer.target(), workloads.parse("C2x2", Limits(seconds=0.2, stall=2.0)))
        assert result.messages == peer.stored > 0
        assert result.seconds > 0.1


def test_latencies_are_given_for_what_was_sent_and_received_in_the_run() -> None:
    with StubPeer() as peer:
        through = measure(peer, "D", 50)
        drained = measure(peer, "B", 50)
    assert through.send_p50_ms is not None
    assert through.end_to_end_p50_ms is not None
    assert 0 < through.send_p50_ms <= (through.send_p99_ms or 0) < 60_000
    assert 0 < through.end_to_end_p50_ms <= (through.end_to_end_p99_ms or 0) < 60_000
    assert drained.send_p50_ms is None
    assert drained.end_to_end_p50_ms is None


def test_a_rejection_voids_the_measurement_with_the_words_of_the_peer() -> None:
    with (
        StubPeer(Habits(reject_from=120)) as peer,
        pytest.raises(LoadError, match=r"rejected, amqp:no-room: it is so"),
    ):
        measure(peer, "A100", 500)


def test_a_refused_attach_is_told_with_its_reason() -> None:
    with StubPeer(Habits(refuse_attach=True)) as peer:
        for name in ("A100", "C1x1"):
            with pytest.raises(LoadError, match="detached the link, amqp:no-room: it is so"):
                measure(peer, name, 10)


def test_a_message_that_comes_twice_voids_the_measurement() -> None:
    with StubPeer(Habits(repeat=7)) as peer, pytest.raises(LoadError, match="21 messages came, of 20 in the queue"):
        measure(peer, "C1x1", 20)


def test_a_message_that_is_lost_and_another_doubled_is_noticed() -> None:
    with (
        StubPeer(Habits(repeat=7, lose=9)) as peer,
        pytest.raises(LoadError, match="1 messages came more than once"),
    ):
        measure(peer, "B", 20)


def test_an_accepted_message_that_never_comes_voids_the_measurement() -> None:
    with StubPeer(Habits(lose=9)) as peer, pytest.raises(LoadError, match=r"silent for 0.3 s.*received 19, settled 19"):
        workloads.run(peer.target(), workloads.parse("C1x1", Limits(messages=20, stall=0.3)))


def test_settlements_without_an_answer_void_the_measurement() -> None:
    with (
        StubPeer(Habits(mute_settlement=True)) as peer,
        pytest.raises(LoadError, match=r"silent for 0.3 s.*received 20, settled 0"),
    ):
        workloads.run(peer.target(), workloads.parse("C1x1", Limits(messages=20, stall=0.3)))


def test_a_peer_that_confirms_no_settlement_gets_settled_dispositions_and_the_run_ends() -> None:
    with StubPeer(Habits(mute_settlement=True)) as peer:
        target = peer.target()._replace(confirms_settlements=False)
        result = workloads.run(target, workloads.parse("C1x1", Limits(messages=20, stall=2.0)))
        assert result.messages == 20
        assert workloads.run(target, workloads.parse("D", Limits(messages=5, stall=2.0))).messages == 5
    assert peer.settled_by_receivers == 25


def test_many_senders_have_a_queue_each_and_leave_all_of_them_empty() -> None:
    with StubPeer() as peer:
        result = measure(peer, "M7", 100)
        assert result.messages == peer.stored == 100
        assert sorted(name for name in peer.queues if name != "plain") == [f"plain-{number:04d}" for number in range(7)]
        assert not any(peer.queues.values())
    assert result.send_p50_ms is not None


def test_many_senders_send_for_a_time_and_a_rejection_voids_the_measurement() -> None:
    with StubPeer() as peer:
        timed = workloads.run(peer.target(), workloads.parse("M3", Limits(seconds=0.1, stall=2.0)))
        assert timed.messages == peer.stored > 3
    with StubPeer(Habits(reject_from=0)) as peer, pytest.raises(LoadError, match="amqp:no-room: it is so"):
        measure(peer, "M3", 10)
    with StubPeer(Habits(lose=4)) as peer, pytest.raises(LoadError, match=r"silent for 0.3 s"):
        workloads.run(peer.target(), workloads.parse("M3", Limits(messages=10, stall=0.3)))


@pytest.mark.parametrize("name", ["A1000", "B", "C2x2"])
def test_the_load_comes_over_tls_where_an_authority_is_named(name: str, tmp_path: Path) -> None:
    authority, context = certificate(tmp_path)
    with StubPeer(tls=context) as peer:
        target = peer.target()._replace(authority=str(authority), hostname="localhost")
        result = workloads.run(target, workloads.parse(name, Limits(messages=3000, stall=5.0)))
        assert result.messages == peer.stored == 3000


def test_messages_of_another_run_are_refused_until_they_are_purged() -> None:
    with StubPeer() as peer:
        with closing(Sender(peer.target(), Run(), 0, 100, 1024)) as sender:
            Exchange([sender], [], Limits(messages=30)).run()
        with pytest.raises(LoadError, match="did not send; empty it first"):
            measure(peer, "C1x1", 10)
        peer.queue.clear()
        with closing(Sender(peer.target(), Run(), 0, 100, 1024)) as sender:
            Exchange([sender], [], Limits(messages=30)).run()
        assert workloads.purge(peer.target(), silence=0.2) == 30
        assert measure(peer, "C1x1", 10).messages == 10


def test_the_backlog_stays_under_its_limit_while_senders_run_ahead() -> None:
    with StubPeer() as peer:
        this = Run()
        with (
            closing(Sender(peer.target(), this, 0, 1000, 1024)) as sender,
            closing(Receiver(peer.target(), this, 0, 20)) as receiver,
        ):
            Exchange([sender], [receiver], Limits(messages=2000, backlog=60, stall=2.0)).run()
        assert peer.stored == 2000
        assert 20 < peer.peak <= 60


def test_the_backlog_is_shared_by_all_senders_of_a_run() -> None:
    with StubPeer() as peer, closing(Receiver(peer.target(), Run(), 0, 20)) as receiver:
        senders = [Sender(peer.target(), Run(), number, 1000, 1024) for number in range(3)]
        with closing(senders[0]), closing(senders[1]), closing(senders[2]):
            with pytest.raises(LoadError, match="did not send"):
                Exchange(senders, [receiver], Limits(messages=2000, backlog=60, stall=2.0)).run()
            assert [sender.sent for sender in senders] == [60, 0, 0]


def test_delivery_ids_with_a_gap_void_the_measurement() -> None:
    with (
        StubPeer(Habits(skip_ids=1)) as peer,
        pytest.raises(LoadError, match="delivery-id 1 came where 0 was due"),
    ):
        measure(peer, "B", 20)


def test_a_sender_keeps_no_more_than_its_window_in_flight() -> None:
    with StubPeer() as peer, closing(Sender(peer.target(), Run(), 0, 25, 1024)) as sender:
        assert sender.pump(1000) == 25
        assert sender.pump(1000) == 0


def test_a_sender_obeys_the_credit_and_the_session_window_of_the_peer() -> None:
    with StubPeer(Habits(credit=12)) as peer, closing(Sender(peer.target(), Run(), 0, 100, 1024)) as sender:
        assert sender.pump(1000) == 12
    with StubPeer(Habits(window=9)) as peer, closing(Sender(peer.target(), Run(), 0, 100, 1024)) as sender:
        assert sender.pump(1000) == 9


def test_credit_is_given_again_when_half_of_it_is_used() -> None:
    with StubPeer() as peer:
        measure(peer, "B", 2000)
        # 500 at first, then at least every 250; a read may pass the half by as much as the credit
        assert 1 + 2000 // 500 <= peer.flows <= 1 + 2000 // 250


def test_messages_carry_the_marks_of_run_sender_and_number() -> None:
    with StubPeer() as peer:
        this = Run()
        with closing(Sender(peer.target(), this, 3, 100, 1024)) as sender:
            Exchange([sender], [], Limits(messages=2)).run()
        marks = [MARKS.unpack(message[-24:]) for message in peer.queue]
        assert [mark[:3] for mark in marks] == [(this.mark, 3, 0), (this.mark, 3, 1)]
        assert marks[0][3] == sender.sent_at[0]


def test_a_user_logs_in_by_plain_and_nobody_by_anonymous() -> None:
    with StubPeer() as peer:
        Sender(peer.target(), Run(), 0, 1, 1024).close()
        Sender(peer.target(user=""), Run(), 0, 1, 1024).close()
        assert peer.logins == [("PLAIN", b"\0rule\0key"), ("ANONYMOUS", b"load")]
        with pytest.raises(LoadError, match="SASL PLAIN failed with code 1"):
            Sender(peer.target(password="wrong"), Run(), 0, 1, 1024)


def test_shares_of_the_senders_add_up_to_what_was_asked() -> None:
    with StubPeer() as peer:
        assert measure(peer, "C4x1", 10).messages == 10
        assert peer.stored == 10


def test_an_unknown_workload_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match="no workload is called 'Z9'"):
        workloads.parse("Z9", Limits())


def test_the_command_line_prints_one_line_of_json_per_workload(capsys: pytest.CaptureFixture[str]) -> None:
    with StubPeer() as peer:
        assert main(["A10", "D", "--port", str(peer.port), "--messages", "40", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split('"')[3] for line in lines] == ["A10", "D"]


def test_the_command_line_fails_when_the_measurement_is_void(capsys: pytest.CaptureFixture[str]) -> None:
    with StubPeer(Habits(reject_from=0)) as peer:
        assert main(["A10", "--port", str(peer.port), "--messages", "40"]) == 1
    assert "amqp:no-room" in capsys.readouterr().err


def test_a_peer_that_cannot_be_reached_is_an_ordinary_error(capsys: pytest.CaptureFixture[str]) -> None:
    with StubPeer() as peer:
        port = peer.port
    assert main(["A10", "--port", str(port), "--messages", "4"]) == 1
    assert "refused" in capsys.readouterr().err


def test_a_large_message_that_fits_no_frame_is_refused_before_the_run() -> None:
    with StubPeer() as peer, pytest.raises(LoadError, match="does not fit a frame of 65536"):
        Sender(Target("127.0.0.1", peer.port, "plain"), Run(), 0, 1, 70_000)
