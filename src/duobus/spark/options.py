"""Options of the data source, checked once: names in any case, values by kind and range, and nothing unknown.

Other connectors ignore unknown options, so that a misspelt limit limits nothing. Here an unknown option is an error
that names the nearest known option.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from duobus.spark.errors import OptionError

#: Where an option holds. A stream reads in ``claim`` or ``browse``, a batch read always in ``browse``.
READ: Final = "read"
WRITE: Final = "write"

#: Kinds of values.
TEXT: Final = "text"
CHOICE: Final = "choice"
NUMBER: Final = "number"
SWITCH: Final = "switch"
DURATION: Final = "duration"
NAMES: Final = "names"
SIZE: Final = "size"

_DURATION: Final = re.compile(r"(\d{1,9})\s*(ms|s|m|h|d)?")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, None: 1_000}
_SIZE: Final = re.compile(r"(\d{1,12})\s*(b|k|kb|m|mb|g|gb)?")
_UNIT_BYTES: Final = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

#: Names a list may have.
NAMES_MAX: Final = 1_000
#: Characters of a value that an error tells.
_TOLD: Final = 100


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        name: Name of the option, as the documentation writes it.
        kind: Kind of the value.
        default: The default as text, parsed like a given value; None: absent.
        meaning: Meaning of the option, in one line.
        least: Least number, duration in ms, or size in bytes.
        most: Greatest number, duration in ms, or size in bytes.
        choices: The values that a choice may have.
        modes: Modes that have the option; empty: all modes.
        aliases: Names of other connectors that are accepted.
        is_secret: Whether the value must not be shown anywhere.
    """

    name: str
    kind: str
    default: str | None
    meaning: str
    least: int = 0
    most: int = 0
    choices: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    is_secret: bool = False

    def parse(self, text: str) -> Any:
        """Return the parsed value; raise OptionError when the option cannot have this value."""
        value: Any = _PARSERS[self.kind](self, text.strip())
        if self.kind in (NUMBER, DURATION, SIZE) and not self.least <= value <= self.most:
            raise self._wrong(text, f"{self._said(self.least)} to {self._said(self.most)}")
        return value

    def _said(self, bound: int) -> str:
        if self.kind == DURATION:
            unit = next((unit for unit in ("d", "h", "m", "s") if bound and bound % _UNIT_MS[unit] == 0), "ms")
            return f"{bound // _UNIT_MS[unit]}{unit}"
        return f"{bound}"

    def _wrong(self, text: str, wanted: str) -> OptionError:
        told = "***" if self.is_secret else repr(text[:_TOLD])
        return OptionError(f"The option '{self.name}' is {told}; it has to be {wanted}.")


def _text(option: Option, text: str) -> str:
    if not text:
        raise option._wrong(text, "a text that is not empty")
    return text


def _choice(option: Option, text: str) -> str:
    for choice in option.choices:
        if text.lower() == choice.lower():
            return choice
    raise option._wrong(text, f"one of {', '.join(option.choices)}")


def _number(option: Option, text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text):
        raise option._wrong(text, f"a whole number, {option.least} to {option.most}")
    return int(text)


def _switch(option: Option, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise option._wrong(text, "true or false")
    return text.lower() == "true"


def _duration(option: Option, text: str) -> int:
    found = _DURATION.fullmatch(text.lower())
    if found is None:
        raise option._wrong(text, "a duration like 500ms, 30s, 5m or 1h")
    return int(found[1]) * _UNIT_MS[found[2]]


def _size(option: Option, text: str) -> int:
    found = _SIZE.fullmatch(text.lower())
    if found is None:
        raise option._wrong(text, "a number of bytes, or one like 512k, 16m or 1g")
    return int(found[1]) * _UNIT_BYTES[(found[2] or "b")[0]]


def _names(option: Option, text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not 1 <= len(names) <= NAMES_MAX:
        raise option._wrong(text, f"1 to {NAMES_MAX} names with commas between them")
    return names


_PARSERS: Final = {
    TEXT: _text,
    CHOICE: _choice,
    NUMBER: _number,
    SWITCH: _switch,
    DURATION: _duration,
    SIZE: _size,
    NAMES: _names,
}

#: How the namespace is reached, by source and sink alike.
CONNECTION_OPTIONS: Final = (
    Option(
        "connectionString", TEXT, None, "connection string; Spark keeps options, so prefer the next two", is_secret=True
    ),
    Option("connectionStringEnv", TEXT, None, "environment variable, on every node, that holds the connection string"),
    Option("connectionStringFile", TEXT, None, "file, on every node, that holds the connection string"),
    Option("endpoint", TEXT, None, "host name of the namespace, with credentialProvider"),
    Option("credentialProvider", TEXT, None, "module:function, called in each process; returns a credential"),
    Option("caFile", TEXT, None, "PEM file, on every node, of the certificate authority to trust"),
    Option("managementEndpoint", TEXT, None, "base URL of the management API, if it is elsewhere"),
    Option("retryTotal", NUMBER, "3", "times that the SDK tries again", least=0, most=20),
)

#: Of the source.
SOURCE_OPTIONS: Final = (
    Option("queue", TEXT, None, "queue to read"),
    Option("topic", TEXT, None, "topic, together with subscription"),
    Option("subscription", TEXT, None, "subscription of topic"),
    Option("queues", NAMES, None, "several entities, with commas; a subscription is written topic/subscriptions/name"),
    Option("queuesPattern", TEXT, None, "queues whose path matches, with * and ?, also later ones; needs Manage"),
    Option(
        "subscriptionsPattern",
        TEXT,
        None,
        "subscriptions whose topic/subscriptions/name matches, with * and ?, also later ones; needs Manage",
    ),
    Option("subQueue", CHOICE, None, "read this sub-queue instead", choices=("deadletter", "transferdeadletter")),
    Option(
        "readMode",
        CHOICE,
        None,
        "claim consumes, browse only looks; by default claim for streams, else browse",
        choices=("claim", "browse"),
    ),
    Option(
        "maxMessagesPerTrigger",
        NUMBER,
        "10000",
        "messages of a batch at most",
        least=1,
        most=1_000_000,
        aliases=("maxOffsetsPerTrigger",),
    ),
    Option(
        "maxBytesPerTrigger",
        SIZE,
        "64m",
        "bytes of the bodies of a batch, about; for claims only",
        least=1,
        most=1 << 40,
    ),
    Option(
        "minMessagesPerTrigger",
        NUMBER,
        None,
        "wait for so many, up to maxTriggerDelay",
        least=1,
        most=1_000_000,
        modes=("claim",),
    ),
    Option(
        "maxTriggerDelay",
        DURATION,
        None,
        "longest wait for minMessagesPerTrigger",
        least=0,
        most=3_600_000,
        modes=("claim",),
    ),
    Option(
        "maxWaitTime", DURATION, "30s", "longest wait for a first message", least=100, most=900_000, modes=("claim",)
    ),
    Option("startingOffsets", TEXT, "earliest", "earliest, latest or JSON", modes=("browse",)),
    Option("endingOffsets", TEXT, "latest", "latest or JSON; of batch reads", modes=("browse",)),
    Option("startingTimestamp", TEXT, None, "ISO 8601 time; messages enqueued from then on", modes=("browse",)),
    Option(
        "endingTimestamp",
        TEXT,
        None,
        "ISO 8601 time; messages enqueued before it, of batch reads",
        modes=("browse",),
    ),
    Option(
        "maxMessages",
        NUMBER,
        None,
        "messages of a batch read at most, which one task reads then",
        least=1,
        most=1_000_000_000,
        modes=("browse",),
    ),
    Option(
        "maxBytes",
        SIZE,
        None,
        "bytes of the bodies of a batch read, about; one task reads them then",
        least=1,
        most=1 << 40,
        modes=("browse",),
    ),
    Option("failOnDataLoss", SWITCH, "true", "fail when planned messages are gone, or go on with a warning"),
    Option(
        "minPartitions",
        NUMBER,
        None,
        "tasks of a batch, about, if it is large enough; by default one for each fragment, up to 4",
        least=1,
        most=10_000,
    ),
    Option(
        "maxRecordsPerPartition",
        NUMBER,
        "5000",
        "messages of a task at most; by default 50000 where nothing is claimed",
        least=1,
        most=1_000_000,
    ),
    Option(
        "exclusive",
        SWITCH,
        "false",
        "no other receiver takes the sessions of these entities; needed for these",
        modes=("claim",),
    ),
    Option("maxSessions", NUMBER, "8", "sessions of a batch at most", least=1, most=1_000, modes=("claim",)),
    Option(
        "claimTimeout",
        DURATION,
        "30s",
        "how long to try for a session that another receiver holds",
        least=1_000,
        most=900_000,
        modes=("claim",),
    ),
    Option(
        "maxAttempts",
        NUMBER,
        None,
        "runs that a batch has until its messages go to the dead-letter queue; with attemptsPath",
        least=2,
        most=1_000,
        modes=("claim",),
    ),
    Option("attemptsPath", TEXT, None, "folder of the driver that keeps the count for maxAttempts", modes=("claim",)),
    Option(
        "settleOn",
        CHOICE,
        "progress",
        "settle at all three signals of progress, or at commit alone",
        choices=("progress", "commit"),
        modes=("claim",),
    ),
    Option(
        "checkpointLocation",
        TEXT,
        None,
        "the query's own checkpoint, in a folder of the driver: its last batch is removed when the query ends; needed "
        "with trigger(once=True)",
    ),
    Option("includeBody", SWITCH, "true", "without it body is null"),
    Option(
        "filterPushdown",
        SWITCH,
        None,
        "push filters to the broker; true demands spark.sql.python.filterPushdown.enabled, by default it is done where "
        "that is set and the broker is duobus",
        modes=("browse",),
    ),
)

#: What Spark itself adds to the options of a sink: ``queryName`` comes from the method of that name.
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})


#: Options of other sources, in lower case, to those that do the same here. A name that ends with a dot stands for all
#: that begin with it.
KAFKA: Final = {
    "kafka.bootstrap.servers": "connectionStringEnv",
    "subscribe": "queue",
    "assign": "queue",
    "subscribepattern": "queuesPattern",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "minoffsetspertrigger": "minMessagesPerTrigger",
    "groupidprefix": "readMode",
    "kafka.group.id": "readMode",
    "kafkaconsumer.polltimeoutms": "maxWaitTime",
    "fetchoffset.numretries": "retryTotal",
    "kafka.ssl.truststore.location": "caFile",
    "kafka.": "",
}
EVENT_HUBS: Final = {
    "eventhubs.connectionstring": "connectionStringEnv",
    "eventhubs.name": "queue",
    "eventhubs.consumergroup": "subscription",
    "eventhubs.startingposition": "startingOffsets",
    "eventhubs.startingpositions": "startingOffsets",
    "eventhubs.endingposition": "endingOffsets",
    "eventhubs.endingpositions": "endingOffsets",
    "eventhubs.receivertimeout": "maxWaitTime",
    "eventhubs.operationtimeout": "retryTotal",
    "eventhubs.maxeventspertrigger": "maxMessagesPerTrigger",
    "maxeventspertrigger": "maxMessagesPerTrigger",
    "eventhubs.": "",
}


#: Names that people try, in lower case, to what they mean: nearness of letters would find another option or none.
MEANT: Final = {
    "batchsize": "maxMessagesPerTrigger",
    "consumergroup": "subscription",
    "entity": "queue",
    "entitypath": "queue",
    "fullyqualifiednamespace": "endpoint",
    "limit": "maxMessages",
    "maxrows": "maxMessages",
    "maxrowspertrigger": "maxMessagesPerTrigger",
    "maxretries": "retryTotal",
    "mode": "readMode",
    "namespace": "endpoint",
    "ratelimit": "maxMessagesPerSecond",
    "receivemode": "readMode",
    "retries": "retryTotal",
}


class Parsed(dict[str, Any]):
    """Values by the name of the option; absent ones are None.

    Attributes:
        given: Names of the options that were given.
    """

    given: frozenset[str] = frozenset()


def parse(given: Mapping[str, str], known: Iterable[Option]) -> Parsed:
    """Check options against those that are known.

    Args:
        given: Names, in any case, and values as text.
        known: All options that exist.

    Raises:
        OptionError: An option is unknown, or has a value that it cannot have.
    """
    options = tuple(known)
    names: dict[str, Option] = {}
    for option in options:
        names.update({name.lower(): option for name in (option.name, *option.aliases)})
    parsed = Parsed(
        (option.name, None if option.default is None else option.parse(option.default)) for option in options
    )
    found: dict[str, str] = {}
    for name, text in given.items():
        if name.lower() in _SPARKS_OWN and name.lower() not in names:
            continue
        if name.lower() not in names:
            raise _unknown(name, options)
        option = names[name.lower()]
        if option.name in found:
            raise OptionError(f"The options '{found[option.name]}' and '{name}' are the same. Give one of them.")
        found[option.name] = name
        parsed[option.name] = option.parse(str(text))
    parsed.given = frozenset(found)
    return parsed


def _unknown(name: str, options: tuple[Option, ...]) -> OptionError:
    told = _foreign(name, {option.name for option in options})
    if told is not None:
        return OptionError(told)
    spelt = {option.name.lower(): option.name for option in options}
    plain = re.sub(r"[-_.\s]", "", name.lower())
    meant = MEANT.get(plain, "").lower()
    near = [meant] if meant in spelt else difflib.get_close_matches(plain, spelt, 1, 0.5)
    hint = f" Did you mean '{spelt[near[0]]}'?" if near else ""
    return OptionError(
        f"There is no option '{name[:_TOLD]}'.{hint} The options are in the reference: docs/reference/spark.md."
    )


def _foreign(name: str, known: set[str]) -> str | None:
    """What to tell of an option of another source; None for any other name."""
    low = name.lower()
    for whose, ours in (("Kafka's", KAFKA), ("Event Hubs'", EVENT_HUBS)):
        prefix = f"{low.partition('.')[0]}."
        if low not in ours and prefix not in ours:
            continue
        found = ours.get(low, "")
        instead = f"here '{found}' does this" if found in known else "here none does this"
        return (
            f"The option '{name[:_TOLD]}' is {whose}; {instead}. The options are in the reference: "
            "docs/reference/spark.md."
        )
    return None


def demand_mode(options: Parsed, known: Iterable[Option], mode: str) -> None:
    """Refuse options that were given although a mode does not have them.

    Raises:
        OptionError: An option belongs to another mode.
    """
    for option in known:
        if option.modes and mode not in option.modes and option.name in options.given:
            raise OptionError(
                f"The option '{option.name}' holds with readMode={' or '.join(option.modes)}; this reader has "
                f"readMode={mode}."
            )
