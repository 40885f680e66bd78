"""Metadata and metering records."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duobus.errors import InternalError
from duobus.model import metadata
from duobus.model.metadata import MessageMetadata, SessionMetadata, encoded, has_session_only, own
from duobus.model.metering import KINDS, RELAY_KINDS, operations_of

_SPECIALS = st.builds(
    MessageMetadata,
    ttl_ms=st.none() | st.integers(0, 2**63 - 1),
    scheduled_ms=st.none() | st.integers(0, 2**53),
    partition_key=st.none() | st.text(max_size=128),
    session_id=st.none() | st.text(max_size=128),
    priority=st.none() | st.integers(0, 255),
    annotations=st.none() | st.binary(max_size=64),
    annotations_count=st.integers(0, 100),
    overlay=st.none() | st.binary(max_size=64),
    reason=st.none() | st.text(max_size=64),
    enqueued_sequence_number=st.none() | st.integers(-(2**63), 2**63 - 1),
)


@given(_SPECIALS)
def test_a_special_part_comes_back_as_it_was_stored(metadata: MessageMetadata) -> None:
    assert MessageMetadata.decode(metadata.encode()) == metadata


def test_an_empty_special_part_takes_a_byte_for_each_member() -> None:
    assert len(MessageMetadata().encode()) <= len(MessageMetadata.__struct_fields__) + 3


def test_a_special_part_of_an_earlier_version_reads_with_defaults() -> None:
    assert MessageMetadata.decode(msgspec.msgpack.encode([1000, None])) == MessageMetadata(ttl_ms=1000)


@given(st.binary(max_size=64))
def test_damaged_special_bytes_raise_nothing_but_our_own_error(data: bytes) -> None:
    try:
        MessageMetadata.decode(data)
    except InternalError:
        return


def test_bytes_of_the_wrong_form_are_refused() -> None:
    for data in (b"", b"\x80", b"\x91\xa1a", msgspec.msgpack.encode({"ttl_ms": 1})[:-1]):
        with pytest.raises(InternalError):
            MessageMetadata.decode(data)


@pytest.mark.parametrize(("size", "operations"), [(0, 1), (1, 1), (65_536, 1), (65_537, 2), (71_680, 2), (262_144, 4)])
def test_an_operation_is_counted_per_64_kib_begun(size: int, operations: int) -> None:
    assert operations_of(size) == operations


def test_settlements_and_renewals_are_recorded_without_price() -> None:
    assert {kind for kind, is_priced in KINDS.items() if not is_priced} == {"settle", "renew", *RELAY_KINDS}


def test_what_messages_of_a_session_share_cannot_be_changed_and_is_stored_as_any_other() -> None:
    shared = SessionMetadata(session_id="s")
    with pytest.raises(AttributeError):
        shared.reason = "changed for all"
    mine = own(shared)
    mine.reason = "changed for one"
    assert shared.reason is None
    assert own(mine) is mine
    assert own(None) == MessageMetadata()
    assert encoded(shared) == encoded(shared) == MessageMetadata(session_id="s").encode()
    assert encoded(mine) == mine.encode()
    assert MessageMetadata.decode(encoded(shared)) == MessageMetadata(session_id="s")


def test_ordinary_is_what_has_nothing_rare_but_a_session() -> None:
    assert has_session_only(None)
    assert has_session_only(SessionMetadata(session_id="s"))
    assert has_session_only(MessageMetadata(session_id="s"))
    assert has_session_only(MessageMetadata())
    assert not has_session_only(MessageMetadata(session_id="s", ttl_ms=5))


def test_the_memory_of_stored_forms_is_bounded() -> None:
    for number in range(5000):
        assert encoded(SessionMetadata(session_id=f"{number}")) == MessageMetadata(session_id=f"{number}").encode()
    assert len(metadata._ENCODED) <= metadata._ENCODED_MAX
