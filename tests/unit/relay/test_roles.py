"""Which of two endpoints an operation tries, when the roles are swapped, and when they are not (IN6, I52)."""

import itertools

import pytest

from duobus.relay.errors import (
    ConnectFailed,
    ConnectionDropped,
    ListenerRejected,
    RelayError,
    RelayRefused,
    RelayTimeout,
    TokenFailed,
)
from duobus.relay.roles import Attempt, Choice, Operation, Roles

NO_LISTENER = "There are no listeners connected for the endpoint. TrackingId:1_G2"


@pytest.mark.parametrize(
    ("error", "fails_over", "precedes_delivery"),
    [
        (ConnectFailed("refused"), True, True),
        (TokenFailed("no token"), True, True),
        (RelayTimeout("late"), True, False),
        (ConnectionDropped("broke"), True, False),
        (RelayRefused(404, "unknown"), True, True),
        (RelayRefused(410, ""), True, False),
        (RelayRefused(500, ""), True, False),
        (RelayRefused(502, NO_LISTENER), True, True),
        (RelayRefused(502, "The listener's response was malformed."), True, False),
        (RelayRefused(503, ""), True, False),
        (RelayRefused(504, ""), True, False),
        (RelayRefused(400, ""), False, False),
        (RelayRefused(401, ""), False, False),
        (RelayRefused(403, ""), False, False),
        (RelayRefused(429, ""), False, False),
        (ListenerRejected(503, "busy"), False, False),
    ],
    ids=str,
)
def test_only_an_outage_of_the_relay_makes_a_pair_try_the_other_endpoint(
    error: RelayError, fails_over: bool, precedes_delivery: bool
) -> None:
    assert (error.fails_over, error.precedes_delivery) == (fails_over, precedes_delivery)
    repeatable, other = Operation(Roles(0), 0, 1000), Operation(Roles(0), 0, 1000, may_repeat=False)
    assert (repeatable.on_failure(error, 10) is not None) == fails_over
    assert (other.on_failure(error, 10) is not None) == (fails_over and precedes_delivery)


def test_the_tracking_id_of_a_refusal_is_read() -> None:
    assert RelayRefused(502, NO_LISTENER).tracking_id == "1_G2"


def test_an_operation_begins_with_the_active_endpoint_and_half_of_the_time() -> None:
    operation = Operation(Roles(1), 5_000, 60_000)
    assert operation.attempt == Attempt(1, 30_000, 30_000)
    assert operation.on_failure(RelayTimeout("late"), 35_000) == Attempt(0, 30_000, 30_000, is_second=True)


def test_time_that_the_first_endpoint_did_not_use_is_the_second_ones() -> None:
    operation = Operation(Roles(0), 0, 60_000)
    assert operation.on_failure(ConnectFailed("refused"), 1_000) == Attempt(1, 59_000, 59_000, is_second=True)


def test_a_request_that_may_not_be_repeated_has_half_of_the_time_to_connect_and_all_of_it_for_its_answer() -> None:
    assert Operation(Roles(0), 0, 60_000, may_repeat=False).attempt == Attempt(0, 30_000, 60_000)


def test_another_share_is_kept_when_one_asks_for_it() -> None:
    assert Operation(Roles(0), 0, 1_000, share=0.25).attempt.limit_ms == 750


def test_no_second_attempt_begins_after_the_deadline() -> None:
    assert Operation(Roles(0), 0, 1_000).on_failure(ConnectFailed("late"), 1_000) is None


def test_the_roles_swap_when_the_backup_has_answered_and_not_before() -> None:
    roles = Roles(0)
    operation = Operation(roles, 0, 1_000)
    operation.on_failure(ConnectFailed("refused"), 1)
    assert roles.choice == Choice(0, 0)
    assert operation.on_success()
    assert roles.choice == Choice(1, 1)


def test_an_answer_of_the_active_endpoint_swaps_nothing() -> None:
    roles = Roles(0)
    assert not Operation(roles, 0, 1_000).on_success()
    assert roles.choice == Choice(0, 0)


def test_when_both_fail_the_roles_stay_and_the_first_error_has_the_second_attached() -> None:
    roles = Roles(0)
    operation = Operation(roles, 0, 1_000)
    first, second = ConnectFailed("one"), RelayTimeout("two")
    assert operation.on_failure(first, 1) is not None
    assert operation.on_failure(second, 2) is None
    assert operation.error is first
    assert first.second is second
    assert roles.choice == Choice(0, 0)


def test_many_that_failed_on_one_active_endpoint_swap_once() -> None:
    roles = Roles(0)
    operations = [Operation(roles, 0, 1_000) for _ in range(5)]
    for operation in operations:
        operation.on_failure(ConnectFailed("refused"), 1)
    assert [operation.on_success() for operation in operations] == [True, False, False, False, False]
    assert roles.choice == Choice(1, 1)


def test_the_former_active_endpoint_is_used_again_after_the_next_failure() -> None:
    roles = Roles(0)
    for expected in (1, 0, 1):
        operation = Operation(roles, 0, 1_000)
        operation.on_failure(ConnectFailed("refused"), 1)
        operation.on_success()
        assert roles.choice.active == expected
        assert Operation(roles, 0, 1_000).attempt.endpoint == expected


def test_a_connection_that_broke_makes_the_next_one_begin_with_the_backup_and_no_request() -> None:
    roles = Roles(0)
    roles.note_broken(roles.choice)
    assert Operation(roles, 0, 1_000).attempt.endpoint == 0
    connection = Operation(roles, 0, 1_000, is_connection=True)
    assert connection.attempt.endpoint == 1
    assert connection.on_success()
    assert roles.choice == Choice(1, 1)


def test_after_a_broken_connection_the_active_endpoint_is_tried_second_and_keeps_its_role() -> None:
    roles = Roles(0)
    roles.note_broken(roles.choice)
    connection = Operation(roles, 0, 1_000, is_connection=True)
    attempt = connection.on_failure(ConnectFailed("refused"), 1)
    assert attempt is not None
    assert attempt.endpoint == 0
    assert not connection.on_success()
    assert roles.choice == Choice(0, 0)
    assert Operation(roles, 0, 1_000, is_connection=True).attempt.endpoint == 0


def test_a_connection_of_earlier_roles_that_breaks_says_nothing() -> None:
    roles = Roles(0)
    earlier = roles.choice
    roles.swap(earlier)
    roles.note_broken(earlier)
    assert Operation(roles, 0, 1_000, is_connection=True).attempt.endpoint == 1


def test_in_every_order_of_three_operations_the_roles_swap_once_for_each_generation() -> None:
    # Each operation begins, fails, and ends at the backup, with success or without.
    steps = [(number, step) for number in range(3) for step in range(3)]
    orders = [
        order
        for order in set(itertools.permutations([number for number, _ in steps]))
        if order.index(0) <= order.index(1) <= order.index(2)
    ]
    assert len(orders) > 100
    for order in orders:
        for outcomes in itertools.product((True, False), repeat=3):
            roles, done, running, swaps = Roles(0), [0, 0, 0], {}, []
            for number in order:
                if done[number] == 0:
                    running[number] = Operation(roles, 0, 1_000)
                elif done[number] == 1:
                    running[number].on_failure(ConnectFailed("x"), 1)
                elif not outcomes[number]:
                    running[number].on_failure(ConnectFailed("y"), 2)
                elif running[number].on_success():
                    swaps.append(running[number].choice)
                done[number] += 1
            assert len(swaps) == len(set(swaps)) == roles.choice.generation
            assert roles.choice.active == roles.choice.generation % 2
            if not any(outcomes):
                assert roles.choice == Choice(0, 0)


def test_the_first_endpoint_is_one_of_two() -> None:
    with pytest.raises(ValueError, match="0 or 1"):
        Roles(2)
