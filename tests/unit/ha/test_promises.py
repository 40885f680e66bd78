"""Every promise about pairs and replication has a test named for it, and this is the list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]

PAIR, VIRTUAL, FAILOVER = "integration/ha/test_pairing.py", "unit/ha/test_virtual_pair.py", "unit/ha/test_failover.py"
TRANSFER, ROTATION, MADE = (
    "unit/ha/test_transfer.py",
    "unit/ha/test_rotation.py",
    "integration/ha/test_pair_provisioning.py",
)
COST, METERED, TWO = (
    "unit/ha/test_pair_cost.py",
    "integration/ha/test_pair_metering.py",
    "integration/ha/test_replication.py",
)

#: Promise to (file, beginning of the names of tests that hold it).
PROMISES: dict[str, list[tuple[str, str]]] = {
    "options have the defaults of the lost API and ranges that are checked (PN1)": [
        ("unit/ha/test_options.py", "test_the_defaults_are_those_of_the_lost_api"),
        ("unit/ha/test_options.py", "test_a_value_out_of_range_is_refused"),
    ],
    "pairing is refused as listed, and once per client": [(PAIR, "test_pairing_is_refused_in_clear_words")],
    "the real count of backlog queues is known": [(PAIR, "test_missing_backlog_queues_are_done_without_and_counted")],
    "backlog queues are made with exactly the properties of the documents (PN6, I44)": [
        (MADE, "test_missing_queues_are_made_with_exactly"),
        (ROTATION, "test_the_first_backlog_queue_of_contoso"),
    ],
    "2,000 deliveries where Azure takes no more": [(MADE, "test_two_thousand_deliveries")],
    "creation is tried three times, and then done without": [
        (MADE, "test_what_fails_is_tried_three_times"),
        (MADE, "test_a_queue_that_cannot_be_made"),
        (MADE, "test_pairing_without_the_right_to_manage"),
    ],
    "existing queues are taken as they are (PN7)": [(MADE, "test_a_queue_that_exists_is_taken_as_it_is")],
    "surplus queues are left, and listed by a command (PN7)": [(MADE, "test_surplus_queues_are_listed_left")],
    "invisible while healthy, byte by byte (PN2, I43)": [
        (VIRTUAL, "test_i43_"),
        (PAIR, "test_while_the_primary_is_healthy"),
    ],
    "messages, lists, batches and generators; what cannot be diverted says so": [
        (PAIR, "test_while_the_primary_is_healthy_nothing_changes"),
        (PAIR, "test_a_failure_reaches_the_caller"),
        (PAIR, "test_a_list_that_no_longer_fits_one_batch"),
    ],
    "failover per entity and client, after the interval, by the table (PN3, PN8, I12)": [
        (FAILOVER, "test_every_history_of_eight_steps"),
        (VIRTUAL, "test_i12_"),
        (VIRTUAL, "test_failover_is_per_entity"),
    ],
    "a failure reaches the caller, and then sends are diverted": [(PAIR, "test_a_failure_reaches_the_caller")],
    "with interval zero the failing send is diverted": [
        (PAIR, "test_with_an_interval_of_zero"),
        (FAILOVER, "test_with_an_interval_of_zero"),
    ],
    "a failing queue leaves the rotation for all; random per sender; all gone is told (PN4, PN12, I45)": [
        (VIRTUAL, "test_i45_"),
        (ROTATION, "test_ten_thousand_senders_spread_evenly"),
        (PAIR, "test_a_backlog_queue_that_fails"),
    ],
    "three classifiers, each a table in the documentation": [
        ("unit/ha/test_classify.py", "test_an_error_means_what_the_table_says"),
        ("unit/ha/test_promises.py", "test_the_three_classifiers_are_columns"),
    ],
    "a full entity raises, or diverts if asked": [(VIRTUAL, "test_on_quota_")],
    "properties move aside and back without loss or collision (PN10, I47)": [
        (TRANSFER, "test_session_life_schedule_and_path"),
        (TRANSFER, "test_a_diverted_message_comes_back_with_every_property"),
        (TRANSFER, "test_user_properties_called_like_ours"),
    ],
    "the size cliff is told, and nothing lost (PN11, I48)": [
        (VIRTUAL, "test_i48_"),
        (PAIR, "test_a_message_too_large"),
    ],
    "pings: interval, content, sessions, end of failover for all (PN9, PN13, I46)": [
        (VIRTUAL, "test_i46_"),
        (TRANSFER, "test_a_ping_is_empty"),
        (PAIR, "test_a_ping_works_on_an_entity_that_requires_sessions"),
    ],
    "nobody gets a ping (I11)": [(PAIR, "test_a_ping_works_on_an_entity"), (VIRTUAL, "test_i46_pings_come")],
    "marked healthy by hand": [(PAIR, "test_a_path_is_marked_healthy_by_hand")],
    "the syphon restores, at least once (PN14, I10)": [
        (PAIR, "test_the_syphon_brings_everything_back"),
        ("integration/demo/test_demo_paired.py", "test_a_pair_survives_the_kill"),
    ],
    "a destination that is away holds up nobody; the undeliverable has its reason (I49)": [
        (VIRTUAL, "test_i49_"),
        (PAIR, "test_a_destination_that_is_missing_at_first_contact"),
        (PAIR, "test_a_destination_that_is_away"),
    ],
    "idle links of ten minutes are attached again for the rest of the poll": [
        (VIRTUAL, "test_a_link_ended_as_idle"),
    ],
    "the syphon as a command": [("integration/ha/test_syphon_command.py", "test_messages_are_carried_until")],
    "closing and faulting in 5 seconds and one more (PN16, I50)": [
        (VIRTUAL, "test_i50_"),
        (PAIR, "test_when_one_client_is_closed"),
    ],
    "events and metrics for all that an operator wants": [
        ("integration/ha/test_pair_metrics.py", "test_an_outage_is_told_in_metrics"),
        ("unit/docs/test_pair_telemetry_reference.py", "test_every_event_of_the_old_library"),
    ],
    "spans link the diverted and the delivered message": [
        ("unit/ha/test_pair_tracing.py", "test_the_spans_that_divert")
    ],
    "cost by configuration and by metering (PN14, PN15, I59)": [
        (COST, "test_ten_queues_and_polls"),
        (COST, "test_what_a_server_metered"),
        (METERED, "test_a_diverted_message_is_four_operations"),
        (METERED, "test_each_poll_of_an_idle_syphon"),
        (VIRTUAL, "test_i59_"),
    ],
    "killed, stopped, cut off, refused and slowed under traffic (F24)": [
        ("integration/ha/test_pair_faults.py", "test_nothing_accepted_is_lost"),
    ],
    "active replication: two copies, one handed out, over restarts (I51)": [
        (TWO, "test_active_replication_sends_two_copies"),
        (TWO, "test_with_one_namespace_away"),
        ("unit/ha/test_deduplication.py", "test_what_is_recorded_is_there"),
        (TWO, "test_the_identifier_is_where"),
    ],
    "passive replication: roles swap on success of the backup only (I52)": [
        (TWO, "test_passive_replication_swaps"),
        (TWO, "test_when_both_fail_the_roles_stay"),
        (TWO, "test_an_error_of_the_sender_itself"),
    ],
    "the two anomalies": [(TWO, "test_the_first_anomaly"), (TWO, "test_the_second_anomaly")],
    "a program becomes a paired one in five lines": [
        ("integration/docs/test_tutorials_in_a_fresh_shell.py", "test_paired_namespaces")
    ],
}


@pytest.mark.parametrize("promise", PROMISES)
def test_every_promise_has_its_tests(promise: str) -> None:
    for file, beginning in PROMISES[promise]:
        names = re.findall(r"^(?:async )?def (test_\w+)", (TESTS / file).read_text(), re.MULTILINE)
        assert any(name.startswith(beginning) for name in names), f"{file} has no {beginning}"


def test_the_three_classifiers_are_columns_of_the_documented_table() -> None:
    page = (TESTS.parent / "docs" / "explanation" / "paired-namespaces.md").read_text()
    (head,) = [line for line in page.splitlines() if line.startswith("| the send failed with")]
    assert re.findall(r"`(\w+)`", head) == ["outage", "documented", "legacy"]
