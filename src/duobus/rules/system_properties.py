"""The system properties: their names, where each comes from, and which an action may set."""

from __future__ import annotations

from typing import Final

# Places in the row of system properties of a MessageView. The first eight come from the properties section.
CONTENT_TYPE: Final = 0
CORRELATION_ID: Final = 1
LABEL: Final = 2
MESSAGE_ID: Final = 3
REPLY_TO: Final = 4
REPLY_TO_SESSION_ID: Final = 5
SESSION_ID: Final = 6
TO: Final = 7
FIRST_OF_ENVELOPE: Final = 8
DEAD_LETTER_SOURCE: Final = 8
DELIVERY_COUNT: Final = 9
ENQUEUED_SEQUENCE_NUMBER: Final = 10
ENQUEUED_TIME: Final = 11
EXPIRES_AT: Final = 12
FORCE_PERSISTENCE: Final = 13
LOCKED_UNTIL: Final = 14
LOCK_TOKEN: Final = 15
PARTITION_KEY: Final = 16
SCHEDULED_TIME: Final = 17
SEQUENCE_NUMBER: Final = 18
SIZE: Final = 19
STATE: Final = 20
TIME_TO_LIVE: Final = 21
VIA_PARTITION_KEY: Final = 22
COUNT: Final = 23

#: By lower-case name. Subject is what newer SDKs call the label.
PLACES: Final = {
    "contenttype": CONTENT_TYPE,
    "correlationid": CORRELATION_ID,
    "label": LABEL,
    "subject": LABEL,
    "messageid": MESSAGE_ID,
    "replyto": REPLY_TO,
    "replytosessionid": REPLY_TO_SESSION_ID,
    "sessionid": SESSION_ID,
    "to": TO,
    "deadlettersource": DEAD_LETTER_SOURCE,
    "deliverycount": DELIVERY_COUNT,
    "enqueuedsequencenumber": ENQUEUED_SEQUENCE_NUMBER,
    "enqueuedtimeutc": ENQUEUED_TIME,
    "expiresatutc": EXPIRES_AT,
    "forcepersistence": FORCE_PERSISTENCE,
    "lockeduntilutc": LOCKED_UNTIL,
    "locktoken": LOCK_TOKEN,
    "partitionkey": PARTITION_KEY,
    "scheduledenqueuetimeutc": SCHEDULED_TIME,
    "sequencenumber": SEQUENCE_NUMBER,
    "size": SIZE,
    "state": STATE,
    "timetolive": TIME_TO_LIVE,
    "viapartitionkey": VIA_PARTITION_KEY,
}

#: Field of the AMQP properties section of those that stand there.
FIELDS: Final = {
    MESSAGE_ID: 0,
    TO: 2,
    LABEL: 3,
    REPLY_TO: 4,
    CORRELATION_ID: 5,
    CONTENT_TYPE: 6,
    SESSION_ID: 10,
    REPLY_TO_SESSION_ID: 12,
}

#: Those that an action may set or remove.
WRITABLE: Final = frozenset(FIELDS) | {
    FORCE_PERSISTENCE,
    PARTITION_KEY,
    SCHEDULED_TIME,
    TIME_TO_LIVE,
    VIA_PARTITION_KEY,
}

#: Those of at most 128 characters (Azure: quotas).
IDS: Final = frozenset((MESSAGE_ID, SESSION_ID, PARTITION_KEY, VIA_PARTITION_KEY, REPLY_TO_SESSION_ID))
ID_LENGTH_MAX: Final = 128

# Sections of a message that a rule needs decoded, as bits.
PROPERTIES_SECTION: Final = 1
APPLICATION_SECTION: Final = 2
ENVELOPE: Final = 4

# What else a filter may look at, as bits: what a result may be kept for depends on these
# (``duobus.rules.matching.result_cache``).
READS_ID: Final = 1
DRAWS_ID: Final = 2
READS_ANY: Final = 4


def traits_of(place: int) -> int:
    """Return the bits of what a filter looks at with the system property at this place."""
    return READS_ID if place == MESSAGE_ID else 0


def section_of(place: int) -> int:
    """Return the bit of what has to be decoded for the system property at this place."""
    return PROPERTIES_SECTION if place < FIRST_OF_ENVELOPE else ENVELOPE
