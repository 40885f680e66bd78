"""Operations of ``$management`` about sessions, one by one, with the types that clients expect."""

from __future__ import annotations

from datetime import timedelta

from kit_place import Place, accept, ask, hold, send, settle

from duobus.amqp import ACCEPTED
from duobus.codec import Array, Timestamp
from duobus.fragment.sessions.sessions import GRACE_MS

LOCK_LOST = (410, "com.microsoft:session-lock-lost")
WITH_MESSAGES = Timestamp(253_402_300_800_000)


def test_renew_session_lock_answers_with_one_end_and_keeps_session_and_messages(place: Place) -> None:
    place.create(requires_session=True, lock_duration=timedelta(seconds=30))
    with place.client() as client:
        send(client, b"m", session_id="s")
        link = accept(client, "s")
        (held,) = hold(client, link=link)
        place.advance(20)
        reply = ask(client, "renew-session-lock", {"session-id": "s"}, link=link)
        assert reply.status == 200
        assert type(reply.body["expiration"]) is Timestamp
        place.advance(20)
        assert settle(client, held, ACCEPTED) == ACCEPTED
        # It protects nothing any more, so that it may be renewed for some seconds after its end.
        place.advance(20)
        assert ask(client, "renew-session-lock", {"session-id": "s"}, link=link).status == 200
        place.advance(30)
        place.advance(GRACE_MS / 1000)
        assert ask(client, "renew-session-lock", {"session-id": "s"}, link=link)[:2] == LOCK_LOST


def test_set_session_state_replaces_and_clears_for_the_holder_alone(place: Place) -> None:
    place.create(requires_session=True)
    with place.client() as client, place.client() as other:
        link = accept(client, "s")
        for state in (b"first", b"\x00" * 1000, b"", None):
            reply = ask(client, "set-session-state", {"session-id": "s", "session-state": state}, link=link)
            assert (reply.status, reply.body) == (200, None)
            # Empty is none.
            assert ask(client, "get-session-state", {"session-id": "s"}).body == {"session-state": state or None}
        stolen = {"session-id": "s", "session-state": b"stolen"}
        assert ask(other, "set-session-state", stolen)[:2] == LOCK_LOST
        assert ask(client, "get-session-state", {"session-id": "s"}).body == {"session-state": None}


def test_get_session_state_is_null_until_it_is_set_and_outlives_the_lock(place: Place) -> None:
    place.create(requires_session=True)
    with place.client() as client:
        link = accept(client, "s")
        reply = ask(client, "get-session-state", {"session-id": "s"}, link=link)
        assert (reply.status, reply.body) == (200, {"session-state": None})
        ask(client, "set-session-state", {"session-id": "s", "session-state": b"kept"}, link=link)
        link.detach()
        assert ask(client, "get-session-state", {"session-id": "s"})[:2] == LOCK_LOST
        link = accept(client, "s")
        assert ask(client, "get-session-state", {"session-id": "s"}, link=link).body == {"session-state": b"kept"}


def test_get_message_sessions_lists_in_both_modes_and_page_by_page(place: Place) -> None:
    place.create(requires_session=True)
    with place.client() as client:
        listing = {"last-updated-time": WITH_MESSAGES, "skip": 0, "top": 2}
        assert ask(client, "get-message-sessions", listing)[:3] == (204, "com.microsoft:session-not-found", None)
        for name in ("a", "b", "c"):
            send(client, b"m", session_id=name)
        accept(client, "quiet")
        ask(client, "set-session-state", {"session-id": "quiet", "session-state": b"x"})
        found: list[str] = []
        while (reply := ask(client, "get-message-sessions", listing)).status == 200:
            page = reply.body["sessions-ids"]
            assert isinstance(page, Array)
            assert len(page.items) <= 2
            found += page.items
            listing["skip"] = reply.body["skip"]
        # What has only a state is listed, too.
        assert sorted(found) == ["a", "b", "c", "quiet"]
        set_since = {"last-updated-time": Timestamp(1), "skip": 0, "top": 10}
        assert ask(client, "get-message-sessions", set_since).body["sessions-ids"].items == ["quiet"]
