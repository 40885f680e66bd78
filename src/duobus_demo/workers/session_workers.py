"""Senders and receivers of sessions on the synchronous SDK. Each runs in a thread of its own and survives the kills."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSender,
)

from duobus_demo.clients import (
    UNKNOWN_OUTCOME,
    Endpoint,
    body_of,
    close_quietly,
    message_id_of,
    number_of,
    record_received,
)
from duobus_demo.corpus import DIGEST_PROPERTY, Outgoing, digest_of
from duobus_demo.dispositions import Action
from duobus_demo.expectations.sessions import Applied, SessionExpectations
from duobus_demo.run_state import RETRY_S, RunState
from duobus_demo.workers.sync_workers import RECEIVE_WAIT_S, SEND_TIMEOUT_S, is_settled

#: How long a receiver waits for the next available session.
ACCEPT_WAIT_S = 1.0
#: Messages that a receive call asks for. The SDK gives back what arrives between two calls, while the receiver sets a
#: state or completes a message. A later message that arrives in the next call is handed out before the one that was
#: given back, so that order is kept only where no more than one message is on its way.
RECEIVE_COUNT = 1
#: Receive calls after which it gives the session up, so that sessions go from hand to hand.
CALLS_PER_SESSION = 20
#: Threads of the last look.
LOOKERS = 8


def run_session_sender(
    run: RunState, endpoint: Endpoint, expectations: SessionExpectations, session_ids: Sequence[str]
) -> None:
    """Send the messages of these sessions, those of one session strictly one after the other."""
    with endpoint.client() as client:
        sender = client.get_queue_sender(run.queue)
        try:
            for position in range(max(len(expectations.sessions[session_id]) for session_id in session_ids)):
                for session_id in session_ids:
                    if position >= len(expectations.sessions[session_id]):
                        continue
                    # The next of a session follows when this one's outcome is known: its order is that of the sends.
                    while not _is_sent(run, endpoint, sender, expectations.sessions[session_id][position], session_id):
                        close_quietly(sender)
                        sender = client.get_queue_sender(run.queue)
                        if run.stopping.wait(RETRY_S):
                            return
        finally:
            close_quietly(sender)


def _is_sent(run: RunState, endpoint: Endpoint, sender: ServiceBusSender, outgoing: Outgoing, session_id: str) -> bool:
    body = outgoing.read()
    message = ServiceBusMessage(
        body,
        message_id=outgoing.message_id,
        session_id=session_id,
        application_properties={DIGEST_PROPERTY: digest_of(body)},
    )
    run.account.sending(outgoing.message_id, body, None)
    try:
        sender.send_messages(message, timeout=SEND_TIMEOUT_S)
    except UNKNOWN_OUTCOME:
        run.account.send_unknown(outgoing.message_id)
        return False
    run.account.acknowledged(outgoing.message_id, endpoint.name)
    return True


def run_session_receiver(run: RunState, endpoint: Endpoint, expectations: SessionExpectations) -> None:
    """Accept one session after the other, and apply its messages to its state."""
    with endpoint.client() as client:
        while not run.stopping.is_set():
            # Without a session in time there is an error, too; either way the next try is a new link.
            with suppress(*UNKNOWN_OUTCOME):
                _work_on_next(run, endpoint, expectations, client)
            run.stopping.wait(RETRY_S / 10)


def _work_on_next(
    run: RunState, endpoint: Endpoint, expectations: SessionExpectations, client: ServiceBusClient
) -> None:
    receiver = client.get_queue_receiver(
        run.queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=ACCEPT_WAIT_S, prefetch_count=0
    )
    with receiver:
        session_id = receiver.session.session_id
        try:
            state = expectations.accepted(session_id, receiver.session.get_state(timeout=SEND_TIMEOUT_S))
            for _call in range(CALLS_PER_SESSION):
                messages = receiver.receive_messages(max_message_count=RECEIVE_COUNT, max_wait_time=RECEIVE_WAIT_S)
                for message in messages:
                    state = _apply(run, expectations, receiver, message, state)
                    if not is_settled(run, endpoint, receiver, message, Action.COMPLETE):
                        return
                if not messages:
                    return
        finally:
            expectations.left(session_id)


def _apply(
    run: RunState,
    expectations: SessionExpectations,
    receiver: ServiceBusReceiver,
    message: ServiceBusReceivedMessage,
    state: Applied,
) -> Applied:
    """Let a message have its effect unless it had it before; returns the session's state."""
    record_received(run.account, message)
    session_id = receiver.session.session_id
    position = expectations.position(
        message_id_of(message), message.session_id or "", number_of(message), state.messages
    )
    if position < state.messages:
        return state
    applied = state.after(position, body_of(message))
    expectations.setting(session_id, applied)
    receiver.session.set_state(applied.encode(), timeout=SEND_TIMEOUT_S)
    expectations.was_set(session_id)
    return applied


def look_at_sessions(run: RunState, endpoint: Endpoint, expectations: SessionExpectations) -> int:
    """Read every session's state back; returns how many sessions still have messages."""
    with_messages: set[str] = set()

    def look(session_ids: Sequence[str]) -> None:
        with endpoint.client() as client:
            for session_id in session_ids:
                with client.get_queue_receiver(run.queue, session_id=session_id) as receiver:
                    expectations.read_back(session_id, receiver.session.get_state(timeout=SEND_TIMEOUT_S))
                    if receiver.peek_messages(timeout=SEND_TIMEOUT_S):
                        with_messages.add(session_id)

    # The SDK takes a good part of a second to open a receiver.
    with ThreadPoolExecutor(LOOKERS) as pool:
        for looked in [pool.submit(look, list(expectations.sessions)[index::LOOKERS]) for index in range(LOOKERS)]:
            looked.result()
    with endpoint.client() as client:
        # Those that have a state are listed, too.
        unknown = set(client.list_queue_sessions(run.queue)) - set(expectations.sessions)
    return len(with_messages | unknown)
