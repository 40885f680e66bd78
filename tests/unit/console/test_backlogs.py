"""Backlog queues of pairs, and the progress of a syphon that a person has asked for."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from azure.servicebus import ServiceBusMessage

from duobus.clock import Clock
from duobus.console.observation.backlogs import Sample, backlogs_of, merged, primaries_among, readers_of, sample_of
from duobus.console.observation.readings import EntityCounts
from duobus.console.observation.syphon_runs import IDLE_S, SyphonRun
from duobus.ha.events import SyphonDeadLettered, Syphoned, SyphonPolled, SyphonSkipped
from duobus.ha.reports.message import EntityState, Report, states_of
from duobus.ha.transfer import to_backlog

QUEUE = EntityCounts("queue", True, 3, 1, 0, 0, 0, 0, 0, 0)
ENTITIES = {
    "Contoso/x-servicebus-transfer/10": QUEUE,
    "contoso/x-servicebus-transfer/2": QUEUE,
    "contoso/x-servicebus-transfer/two": QUEUE,
    "fabrikam/x-servicebus-transfer/0": QUEUE,
    "t/x-servicebus-transfer/0": QUEUE._replace(kind="topic"),
    "orders": QUEUE,
}


class Ticking(Clock):
    """A clock that tests set."""

    at_ms = 0

    def monotonic_ms(self) -> int:
        """What the test says."""
        return self.at_ms


def peeked(path: str | None, at_s: int) -> Any:
    plain = ServiceBusMessage("x")
    message: Any = plain.raw_amqp_message if path is None else to_backlog(plain, path, 0)
    # What was peeked tells when it was put there; a new message of the SDK does not.
    message.enqueued_time_utc = datetime.fromtimestamp(at_s, UTC)
    return message


def test_primaries_are_found_by_the_paths_of_their_backlog_queues_whatever_the_letters_case() -> None:
    assert [name.lower() for name in primaries_among(ENTITIES)] == ["contoso", "fabrikam"]
    assert [queue.path[-2:] for queue in backlogs_of(ENTITIES, "CONTOSO")] == ["/2", "10"]
    assert [queue.is_used for queue in backlogs_of(ENTITIES, "contoso")] == [True, False]


def test_messages_are_counted_by_destination_and_those_of_others_by_none() -> None:
    found = sample_of([peeked("orders", 50), peeked("orders", 40), peeked(None, 60)])
    assert found == Sample(Counter({"orders": 2, "": 1}), 40_000, 3)
    assert merged([found, sample_of([]), sample_of([peeked("x", 30)])]) == Sample(
        Counter({"orders": 2, "": 1, "x": 1}), 30_000, 4
    )
    assert merged([]) == Sample(Counter(), None, 0)


def test_who_reads_a_backlog_queue_is_known_by_the_links() -> None:
    links = [{"role": "receiver", "address": "P/x-servicebus-transfer/0"}, {"role": "sender", "address": "p/q"}]
    connections = [{"connection": "c1", "client": "syphon", "links": links}, {"connection": "c2", "links": links[1:]}]
    assert readers_of(connections, ["p/x-servicebus-transfer/0", "p/q"]) == {
        "p/x-servicebus-transfer/0": ["syphon"],
        "p/q": [],
    }


def test_what_clients_report_is_counted_by_entity_and_the_last_word_of_each_client_counts() -> None:
    away, unsure = EntityState("orders", "", "failed over"), EntityState("orders", "", "suspect")
    keys = EntityState("parts", "3/16", "suspect")
    told = states_of(
        [Report("a", 1, (away,), 0, 0), Report("a", 2, (unsure, keys), 0, 0), Report("b", 1, (away,), 7, 1)]
    )
    assert told["entities"] == [
        {"entity": "orders", "fragment": "", "failed_over": 1, "suspect": 1},
        {"entity": "parts", "fragment": "3/16", "failed_over": 0, "suspect": 1},
    ]
    assert (told["clients"], told["left_out"], told["latest_ms"]) == (2, 7, 2)
    assert states_of([])["clients"] == 0


def run_of(*queues: str) -> tuple[SyphonRun, Ticking]:
    clock = Ticking()
    return SyphonRun("p", "s", queues, 10, clock), clock


def test_a_run_is_over_when_every_queue_has_nothing_left() -> None:
    run, _ = run_of("a", "b")
    for event in (
        SyphonPolled("a", 3), Syphoned("orders", "a", 2, 5), SyphonDeadLettered("", "a", "NoPath", ""),
        SyphonPolled("a", 0), SyphonPolled("b", 4),
    ):  # fmt: skip
        run.tell(event)
    assert not run.is_over
    run.tell(Syphoned("orders", "b", 4, 5))
    run.tell(SyphonPolled("b", 0))
    assert run.is_over
    told = run.told()
    assert (told["carried"], told["dead"], told["by_entity"]) == (6, 1, {"orders": 6})
    assert told["reason"] == "Nothing is left in the backlog queues."


def test_a_destination_that_takes_nothing_ends_the_run_only_after_a_while() -> None:
    run, clock = run_of("a")
    run.tell(SyphonSkipped("orders", "a", 1, "busy", "wait"))
    run.tell(SyphonPolled("a", 0))
    assert not run.is_over
    clock.at_ms = round(IDLE_S * 1000) + 1
    asyncio.run(run.wait(check_s=0.001))
    assert "What is left stays" in run.reason
    assert run.told()["skipped"] == {"orders": "busy"}
    run.end("again")
    assert "What is left stays" in run.reason
