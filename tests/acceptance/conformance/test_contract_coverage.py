"""Every operation of ``$management`` and every error condition has its tests.

A row that lost its last test, or names one that does not exist, fails here; so does an operation or a condition of the
code that has no row.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import duobus.errors
from duobus.amqp import errors as engine_conditions
from duobus.gateway.amqp.management.node import _OPERATIONS

TESTS = Path(__file__).parents[2]
PREFIX = "com.microsoft:"

MESSAGES, SESSIONS, RULES, NODES, BAD_INPUT, CONDITIONS_OF_LINKS = (
    f"acceptance/conformance/test_{name}.py"
    for name in (
        "operations_on_messages",
        "operations_on_sessions",
        "operations_on_rules",
        "operations_refused",
        "bad_input",
        "conditions",
    )
)
JS_TOPICS = "acceptance/javascript/test_javascript_topics.py"
SDK_MANAGEMENT, SDK_SESSIONS = (
    "acceptance/conformance/test_sdk_management.py",
    "acceptance/conformance/test_sdk_sessions.py",
)
SDK_LIFE = "acceptance/conformance/test_sdk_entity_life.py"
RAW_DELIVERIES, RAW_SESSIONS = (
    "acceptance/conformance/test_raw_deliveries.py",
    "acceptance/conformance/test_raw_sessions.py",
)
TRANSACTIONS, SCHEDULING = (
    "integration/gateway/test_transactions.py",
    "acceptance/conformance/test_transactions_scheduling.py",
)
HOSTILE_FRAMES, HOSTILE_LINKS = (
    "integration/hostile/test_frames_and_values.py",
    "integration/hostile/test_links_and_deliveries.py",
)

#: Operation to its tests, as path and name: what it does, with the types of the contract, then through an SDK.
OPERATIONS: dict[str, list[tuple[str, str]]] = {
    "renew-lock": [
        (MESSAGES, "test_renew_lock_answers_with_the_ends_in_order_and_renews_all_or_none"),
        (RAW_SESSIONS, "test_the_lock_of_one_message_of_a_session_is_not_renewed_alone"),
        ("acceptance/conformance/test_sdk_queue.py", "test_a_renewal_with_the_token_moves_the_end_of_the_lock"),
    ],
    "peek-message": [
        (MESSAGES, "test_peek_message_shows_from_the_number_on_and_changes_nothing"),
        (RAW_DELIVERIES, "test_peek_leaves_the_bodies_out_when_asked"),
        (
            "acceptance/conformance/test_sdk_management.py",
            "test_peek_shows_every_state_in_order_and_dead_letters_at_their_own_node",
        ),
        (SDK_MANAGEMENT, "test_one_peek_brings_at_most_256_kib_and_the_next_goes_on"),
        (SDK_SESSIONS, "test_peek_shows_only_the_session"),
    ],
    "receive-by-sequence-number": [
        (MESSAGES, "test_receive_by_sequence_number_takes_deferred_messages_and_all_or_none"),
        (RAW_DELIVERIES, "test_a_message_got_by_its_number_carries_its_lock_token_too"),
        (SDK_MANAGEMENT, "test_deferred_messages_come_back_by_their_numbers_in_any_order"),
        (SDK_SESSIONS, "test_deferred_messages_are_their_sessions_alone"),
    ],
    "update-disposition": [
        (MESSAGES, "test_update_disposition_settles_by_token_in_each_way_and_once"),
        (TRANSACTIONS, "test_a_disposition_by_token_is_done_with_its_transaction"),
        (BAD_INPUT, "test_settling_outside_of_the_session_is_a_lost_lock_and_the_holder_goes_on"),
    ],
    "schedule-message": [
        (MESSAGES, "test_schedule_message_answers_with_numbers_that_lead_to_the_messages"),
        (RAW_DELIVERIES, "test_numbers_of_scheduled_messages_are_an_array_of_longs"),
        (SCHEDULING, "test_numbers_are_told_at_once_and_the_messages_are_there_with_the_commit"),
        (SCHEDULING, "test_a_rollback_leaves_a_gap"),
        (MESSAGES, "test_what_is_scheduled_by_its_annotation_in_a_transaction_waits_from_the_commit_on"),
        (SDK_MANAGEMENT, "test_a_scheduled_message_arrives_at_its_time_within_a_second"),
    ],
    "cancel-scheduled-message": [
        (MESSAGES, "test_cancel_scheduled_message_takes_all_or_none_and_none_that_is_active"),
        (SCHEDULING, "test_a_cancel_takes_effect_with_the_commit"),
        (BAD_INPUT, "test_cancelling_numbers_that_nobody_knows_cancels_nothing"),
        (SDK_MANAGEMENT, "test_a_cancelled_message_is_gone_for_good"),
    ],
    "renew-session-lock": [
        (SESSIONS, "test_renew_session_lock_answers_with_one_end_and_keeps_session_and_messages"),
        (RAW_SESSIONS, "test_only_the_holders_connection_manages_a_session"),
        (SDK_SESSIONS, "test_renewing_prolongs_the_lock_of_the_session_and_its_messages"),
    ],
    "get-session-state": [
        (SESSIONS, "test_get_session_state_is_null_until_it_is_set_and_outlives_the_lock"),
        (RAW_SESSIONS, "test_only_the_holders_connection_manages_a_session"),
        (SDK_SESSIONS, "test_the_state_of_a_session_is_set_replaced_and_cleared"),
    ],
    "set-session-state": [
        (SESSIONS, "test_set_session_state_replaces_and_clears_for_the_holder_alone"),
        (BAD_INPUT, "test_a_session_state_above_the_limit_leaves_the_one_before_it"),
        (SDK_SESSIONS, "test_the_state_of_a_session_is_set_replaced_and_cleared"),
    ],
    "get-message-sessions": [
        (SESSIONS, "test_get_message_sessions_lists_in_both_modes_and_page_by_page"),
        (RAW_SESSIONS, "test_sessions_are_listed_by_messages_and_by_the_time_of_their_state"),
        (SDK_SESSIONS, "test_sessions_with_messages_are_listed"),
    ],
    "batch-delete-messages": [
        (MESSAGES, "test_batch_delete_messages_takes_free_messages_and_says_how_many"),
        ("acceptance/conformance/test_raw_clearing.py", "test_a_batch_delete_that_cannot_be_meant_is_refused"),
    ],
    "add-rule": [
        (RULES, "test_add_rule_is_in_force_for_the_next_message"),
        (RULES, "test_add_rule_of_a_name_that_exists_is_a_conflict_and_changes_nothing"),
        (RULES, "test_add_rule_refuses_what_is_no_rule_and_makes_nothing"),
        (NODES, "test_an_operation_on_rules_is_not_implemented_on_a_queue"),
        (JS_TOPICS, "test_the_rule_manager_adds_lists_and_removes_rules"),
    ],
    "remove-rule": [
        (RULES, "test_remove_rule_takes_it_out_of_force_and_knows_it_once"),
        (JS_TOPICS, "test_the_rule_manager_adds_lists_and_removes_rules"),
    ],
    "enumerate-rules": [
        (RULES, "test_enumerate_rules_describes_each_by_pages"),
        (RULES, "test_enumerate_rules_refuses_absurd_pages"),
        (JS_TOPICS, "test_the_rule_manager_adds_lists_and_removes_rules"),
    ],
}

#: What holds for every operation.
EVERY_OPERATION = [
    (NODES, "test_an_operation_needs_its_right"),
    (NODES, "test_an_operation_needs_a_map_as_its_body"),
    (NODES, "test_a_queue_that_does_not_exist_has_no_management_node"),
    (NODES, "test_the_management_node_of_a_queue_that_is_deleted_ends"),
    (NODES, "test_an_operation_that_does_not_end_in_the_time_given_is_a_timeout"),
    (RAW_DELIVERIES, "test_an_unknown_management_operation_is_501_and_not_implemented"),
    (MESSAGES, "test_a_reply_is_about_its_request_and_has_the_types_that_sdks_cast_to"),
]

#: Condition to the tests that provoke it over a connection and see its name, or the SDK's exception for it.
CONDITIONS: dict[str, list[tuple[str, str]]] = {
    "amqp:internal-error": [
        (CONDITIONS_OF_LINKS, "test_internal_error_answers_a_request_that_runs_into_a_fault_of_ours"),
        (TRANSACTIONS, "test_a_discharge_that_nobody_can_decide_ends_its_link_and_not_the_connection"),
    ],
    "amqp:not-found": [
        (NODES, "test_a_queue_that_does_not_exist_has_no_management_node"),
        (
            "acceptance/conformance/test_sdk_rights_and_errors.py",
            "test_a_missing_entity_is_a_token_that_was_not_taken_and_the_log_says_why",
        ),
        (
            "acceptance/conformance/test_sdk_entity_life.py",
            "test_links_to_a_queue_that_is_deleted_hear_that_it_could_not_be_found",
        ),
    ],
    "amqp:unauthorized-access": [
        (NODES, "test_an_operation_needs_its_right"),
        ("integration/hostile/test_wrong_tokens.py", "test_a_token_that_is_wrong_gives_nothing"),
        (
            "acceptance/conformance/test_sdk_rights_and_errors.py",
            "test_a_rule_opens_only_the_side_that_it_has_the_right_for",
        ),
    ],
    "amqp:decode-error": [
        (CONDITIONS_OF_LINKS, "test_a_connection_that_breaks_the_protocol_is_closed_with_its_condition"),
        (RAW_DELIVERIES, "test_a_management_request_that_cannot_be_meant_is_refused_by_name"),
    ],
    "amqp:invalid-field": [
        (HOSTILE_FRAMES, "test_a_link_with_a_huge_address_is_refused_alone"),
        (HOSTILE_FRAMES, "test_a_disposition_that_runs_backwards_ends_its_session"),
    ],
    "amqp:not-allowed": [
        (CONDITIONS_OF_LINKS, "test_not_allowed_is_told_to_whoever_sends_to_dead_letters_or_forgets_the_session"),
        (RAW_SESSIONS, "test_operations_on_sessions_are_refused_where_there_are_none"),
    ],
    "amqp:not-implemented": [
        (RAW_DELIVERIES, "test_an_unknown_management_operation_is_501_and_not_implemented"),
        (RAW_DELIVERIES, "test_a_source_that_is_not_offered_is_refused_after_an_attach"),
    ],
    "amqp:resource-limit-exceeded": [
        (BAD_INPUT, "test_a_message_and_a_queue_of_exactly_the_limit_are_taken_and_not_one_byte_more"),
        (BAD_INPUT, "test_a_session_state_above_the_limit_leaves_the_one_before_it"),
        (BAD_INPUT, "test_a_transaction_of_exactly_the_limit_commits_and_one_message_more_is_nothing"),
        ("acceptance/conformance/test_sdk_quotas.py", "test_one_receiver_too_many_is_refused_and_senders_are_not"),
        (
            "acceptance/conformance/test_sdk_quotas.py",
            "test_one_connection_too_many_is_closed_and_strangers_do_not_count",
        ),
    ],
    "amqp:illegal-state": [
        (CONDITIONS_OF_LINKS, "test_a_connection_that_breaks_the_protocol_is_closed_with_its_condition"),
    ],
    "amqp:connection:forced": [
        ("acceptance/conformance/test_process_life.py", "test_sigterm_says_good_bye_on_every_link_and_exits_with_0"),
        (
            "integration/hostile/test_slow_and_silent.py",
            "test_a_half_open_connection_is_given_up_after_two_idle_time_outs",
        ),
    ],
    "amqp:connection:framing-error": [
        (CONDITIONS_OF_LINKS, "test_a_connection_that_breaks_the_protocol_is_closed_with_its_condition"),
    ],
    "amqp:session:unattached-handle": [(HOSTILE_FRAMES, "test_an_unknown_handle_ends_its_session_and_no_other")],
    "amqp:session:handle-in-use": [(HOSTILE_FRAMES, "test_a_handle_used_twice_ends_its_session")],
    "amqp:link:detach-forced": [
        ("acceptance/conformance/test_process_life.py", "test_sigterm_says_good_bye_on_every_link_and_exits_with_0"),
    ],
    "amqp:link:message-size-exceeded": [
        (BAD_INPUT, "test_a_message_and_a_queue_of_exactly_the_limit_are_taken_and_not_one_byte_more"),
        ("acceptance/conformance/test_sdk_queue.py", "test_a_message_above_the_limit_ends_in_the_size_error_at_once"),
    ],
    "amqp:link:transfer-limit-exceeded": [(HOSTILE_LINKS, "test_a_transfer_without_credit_ends_its_link_only")],
    "amqp:transaction:unknown-id": [
        (BAD_INPUT, "test_a_transaction_id_of_another_connection_does_nothing_there_and_stays_good_here"),
        (BAD_INPUT, "test_a_second_discharge_is_of_an_unknown_transaction_and_changes_nothing"),
    ],
    "amqp:transaction:rollback": [
        (BAD_INPUT, "test_a_transaction_of_exactly_the_limit_commits_and_one_message_more_is_nothing"),
        (TRANSACTIONS, "test_a_lock_that_is_lost_before_the_discharge_rolls_everything_back"),
    ],
    "amqp:transaction:timeout": [
        (TRANSACTIONS, "test_a_transaction_that_takes_too_long_is_rolled_back_and_says_so"),
    ],
    "com.microsoft:server-busy": [
        (
            "acceptance/conformance/test_sdk_throttled.py",
            "test_a_send_beyond_the_rate_is_server_busy_with_the_code_and_the_wait",
        ),
    ],
    "com.microsoft:timeout": [
        (NODES, "test_an_operation_that_does_not_end_in_the_time_given_is_a_timeout"),
        (RAW_SESSIONS, "test_a_wait_ends_at_its_time_and_holds_up_nobody_on_its_session"),
        (SDK_SESSIONS, "test_without_a_session_the_wait_ends_in_time_with_a_timeout"),
    ],
    "com.microsoft:operation-cancelled": [
        (TRANSACTIONS, "test_a_session_that_began_with_its_coordinator_receives_from_one_entity"),
    ],
    "com.microsoft:message-lock-lost": [
        (RAW_DELIVERIES, "test_a_late_settlement_is_lock_lost_by_link_and_by_management"),
        (MESSAGES, "test_renew_lock_answers_with_the_ends_in_order_and_renews_all_or_none"),
        ("acceptance/conformance/test_sdk_queue.py", "test_settling_after_the_lock_has_expired_is_lock_lost"),
    ],
    "com.microsoft:session-lock-lost": [
        (BAD_INPUT, "test_settling_after_the_session_is_lost_leaves_its_messages"),
        (RAW_SESSIONS, "test_a_session_that_is_lost_is_told_by_a_detach_and_for_each_delivery"),
        (SDK_SESSIONS, "test_a_session_that_is_not_renewed_is_lost_and_its_messages_come_again"),
    ],
    "com.microsoft:session-cannot-be-locked": [
        (CONDITIONS_OF_LINKS, "test_session_cannot_be_locked_is_told_while_another_link_has_it"),
        (SDK_SESSIONS, "test_a_session_held_by_another_cannot_be_locked"),
    ],
    "com.microsoft:message-not-found": [
        (BAD_INPUT, "test_cancelling_numbers_that_nobody_knows_cancels_nothing"),
        (MESSAGES, "test_receive_by_sequence_number_takes_deferred_messages_and_all_or_none"),
        (SDK_MANAGEMENT, "test_an_unknown_number_is_message_not_found_and_touches_nothing"),
    ],
    "com.microsoft:session-not-found": [
        (SESSIONS, "test_get_message_sessions_lists_in_both_modes_and_page_by_page"),
    ],
    "com.microsoft:entity-disabled": [
        (CONDITIONS_OF_LINKS, "test_entity_disabled_is_told_to_links_attaches_and_requests"),
        (SDK_LIFE, "test_a_queue_that_is_disabled_detaches_both_kinds_of_links"),
    ],
    "com.microsoft:argument-error": [
        (BAD_INPUT, "test_a_session_id_and_a_partition_key_that_differ"),
        (NODES, "test_an_operation_needs_a_map_as_its_body"),
    ],
    "com.microsoft:argument-out-of-range": [
        (BAD_INPUT, "test_an_absurd_schedule_time_is_refused"),
        (BAD_INPUT, "test_requests_ask_for_as_much_as_they_may_and_no_more"),
    ],
    "com.microsoft:entity-already-exists": [
        (RULES, "test_add_rule_of_a_name_that_exists_is_a_conflict_and_changes_nothing"),
    ],
    "com.microsoft:no-matching-subscription": [
        (RULES, "test_a_message_that_no_subscription_takes_is_refused_where_the_topic_says_so"),
    ],
}

#: Rows whose condition this broker never sends, each with what it does instead.
CONDITIONS_NEVER_SENT = {
    "amqp:resource-deleted": "links of a deleted entity end with amqp:not-found, by which all SDKs stop trying",
    "amqp:resource-locked": "a session that is locked has a condition of its own",
    "amqp:precondition-failed": "no operation has preconditions",
    "com.microsoft:precondition-failed": "no operation has preconditions",
    "amqp:frame-size-too-small": "512 bytes, which every peer has to take, are enough for whatever we say",
    "amqp:connection:redirect": "the broker that is asked serves",
    "amqp:session:errant-link": "transfers to an unknown handle are amqp:session:unattached-handle",
    "amqp:session:window-violation": "credit is what bounds a sender: amqp:link:transfer-limit-exceeded",
    "amqp:link:stolen": "of Event Hubs",
    "amqp:link:redirect": "the broker that is asked serves",
    "com.microsoft:auth-failed": "a bad token is answered with 401 and amqp:unauthorized-access",
    "com.microsoft:store-lock-lost": "rarely or never sent by the cloud; a lost store is com.microsoft:server-busy",
    "com.microsoft:partition-not-owned": "rarely or never sent by the cloud",
    "com.microsoft:publisher-revoked": "rarely or never sent by the cloud",
    "com.microsoft:address-already-in-use": "rarely or never sent by the cloud",
}


#: Bad input, to the tests that see the documented error, nothing stored and nothing stuck.
BAD_INPUTS: dict[str, list[tuple[str, str]]] = {
    "session id and partition key that differ": [(BAD_INPUT, "test_a_session_id_and_a_partition_key_that_differ")],
    "state above the limit": [
        (BAD_INPUT, "test_a_session_state_above_the_limit_leaves_the_one_before_it"),
        (BAD_INPUT, "test_a_session_state_that_is_no_binary_is_refused"),
    ],
    "schedule times in the past": [(BAD_INPUT, "test_a_schedule_time_in_the_past_is_now")],
    "schedule times that are absurd": [(BAD_INPUT, "test_an_absurd_schedule_time_is_refused")],
    "cancel of unknown numbers": [(BAD_INPUT, "test_cancelling_numbers_that_nobody_knows_cancels_nothing")],
    "a transaction id of another connection": [
        (BAD_INPUT, "test_a_transaction_id_of_another_connection_does_nothing_there_and_stays_good_here"),
    ],
    "discharge twice": [(BAD_INPUT, "test_a_second_discharge_is_of_an_unknown_transaction_and_changes_nothing")],
    "settle outside the session": [
        (BAD_INPUT, "test_settling_outside_of_the_session_is_a_lost_lock_and_the_holder_goes_on"),
        (BAD_INPUT, "test_settling_after_the_session_is_lost_leaves_its_messages"),
    ],
    "quotas at their exact edge": [
        (BAD_INPUT, "test_a_message_and_a_queue_of_exactly_the_limit_are_taken_and_not_one_byte_more"),
        (BAD_INPUT, "test_a_transaction_of_exactly_the_limit_commits_and_one_message_more_is_nothing"),
        (BAD_INPUT, "test_a_name_of_exactly_128_characters_is_taken_and_one_of_129_is_not"),
        (BAD_INPUT, "test_requests_ask_for_as_much_as_they_may_and_no_more"),
        ("acceptance/conformance/test_sdk_quotas.py", "test_one_receiver_too_many_is_refused_and_senders_are_not"),
        (
            "acceptance/conformance/test_sdk_quotas.py",
            "test_one_connection_too_many_is_closed_and_strangers_do_not_count",
        ),
    ],
}


@cache
def names_in(path: str) -> frozenset[str]:
    """Names of the test functions of a file."""
    tree = ast.parse((TESTS / path).read_text())
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def missing(tests: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(path, name) for path, name in tests if not (TESTS / path).is_file() or name not in names_in(path)]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_of_the_contract_has_tests_that_exist(operation: str) -> None:
    assert OPERATIONS[operation]
    assert missing(OPERATIONS[operation]) == []


@pytest.mark.parametrize("condition", CONDITIONS)
def test_every_condition_of_the_contract_has_tests_that_exist(condition: str) -> None:
    assert CONDITIONS[condition]
    assert missing(CONDITIONS[condition]) == []


@pytest.mark.parametrize("phrase", BAD_INPUTS)
def test_every_kind_of_bad_input_has_tests_that_exist(phrase: str) -> None:
    assert BAD_INPUTS[phrase]
    assert missing(BAD_INPUTS[phrase]) == []


def test_what_holds_for_every_operation_has_tests_that_exist() -> None:
    assert missing(EVERY_OPERATION) == []


def test_the_operations_of_the_code_are_the_rows_of_the_table() -> None:
    built = {name.removeprefix(PREFIX) for name in _OPERATIONS if name.startswith(PREFIX)}
    assert built == set(OPERATIONS)
    # Chapter 10.3 has 14 operations.
    assert len(OPERATIONS) == 14


def conditions_of_the_code() -> set[str]:
    """Every condition that an error class or the engine can put on the wire."""
    classes = [found for found in vars(duobus.errors).values() if isinstance(found, type)]
    found = {str(each.condition) for each in classes if hasattr(each, "condition")}
    return found | {
        value for name, value in vars(engine_conditions).items() if name.isupper() and isinstance(value, str)
    }


def test_the_conditions_of_the_code_are_rows_of_the_table() -> None:
    sent = set(CONDITIONS)
    # This one has no class: it comes with a status that is no error.
    assert conditions_of_the_code() | {"com.microsoft:session-not-found"} == sent
    assert not sent & set(CONDITIONS_NEVER_SENT)
    assert (len(CONDITIONS), len(CONDITIONS_NEVER_SENT)) == (32, 15)
