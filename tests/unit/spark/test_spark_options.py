"""Options of the data source are checked once, by name, kind and range."""

from __future__ import annotations

import re

import pytest

from duobus.spark.connection import masked, place_of
from duobus.spark.errors import OptionError
from duobus.spark.options import CONNECTION_OPTIONS, EVENT_HUBS, KAFKA, MEANT, SOURCE_OPTIONS, parse
from duobus.spark.sink.writer import SINK_OPTIONS

KNOWN = (*CONNECTION_OPTIONS, *SOURCE_OPTIONS)


def test_names_are_understood_in_any_case() -> None:
    assert parse({"MAXMESSAGESPERTRIGGER": "5"}, KNOWN)["maxMessagesPerTrigger"] == 5


def test_what_is_not_given_has_its_default_or_is_none() -> None:
    parsed = parse({}, KNOWN)
    assert parsed["maxWaitTime"] == 30_000
    assert parsed["exclusive"] is False
    assert parsed["queue"] is None
    assert parsed.given == frozenset()


def test_the_name_another_connector_has_is_understood() -> None:
    parsed = parse({"maxOffsetsPerTrigger": "7"}, KNOWN)
    assert parsed["maxMessagesPerTrigger"] == 7
    assert parsed.given == {"maxMessagesPerTrigger"}


def test_one_option_under_two_names_is_refused() -> None:
    with pytest.raises(OptionError, match="are the same"):
        parse({"maxOffsetsPerTrigger": "7", "maxMessagesPerTrigger": "7"}, KNOWN)


def test_an_unknown_option_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(OptionError, match=r"no option 'maxMesagesPerTriger'\. Did you mean 'maxMessagesPerTrigger'\?"):
        parse({"maxMesagesPerTriger": "5"}, KNOWN)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("maxMesages", "maxMessages"),
        ("max_bytes", "maxBytes"),
        ("maxRowsPerTrigger", "maxMessagesPerTrigger"),
        ("limit", "maxMessages"),
        ("readmod", "readMode"),
        ("startingOfsets", "startingOffsets"),
        ("endTime", "endingTimestamp"),
        ("connection-string-env", "connectionStringEnv"),
        ("subscriptonName", "subscription"),
        ("consumerGroup", "subscription"),
        ("entity", "queue"),
        ("quue", "queue"),
        ("includeBodies", "includeBody"),
        ("checkpoint", "checkpointLocation"),
        ("failOnLoss", "failOnDataLoss"),
        ("maxRetries", "retryTotal"),
        ("fullyQualifiedNamespace", "endpoint"),
    ],
)
def test_a_wrong_name_of_an_option_of_the_source_is_answered_with_the_right_one(name: str, meant: str) -> None:
    with pytest.raises(OptionError, match=rf"^There is no option '{name}'\. Did you mean '{meant}'\? The options"):
        parse({name: "5"}, KNOWN)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("write_id", "writeId"),
        ("messageIds", "messageIdMode"),
        ("oversizePaths", "oversizePath"),
        ("maxPerSecond", "maxMessagesPerSecond"),
        ("rate_limit", "maxMessagesPerSecond"),
        ("reports", "reportPath"),
        ("onOverSized", "onOversize"),
        ("entityPath", "queue"),
        ("topics", "topic"),
        ("retries", "retryTotal"),
    ],
)
def test_a_wrong_name_of_an_option_of_the_sink_is_answered_with_the_right_one(name: str, meant: str) -> None:
    with pytest.raises(OptionError, match=rf"^There is no option '{name}'\. Did you mean '{meant}'\? The options"):
        parse({name: "5"}, (*CONNECTION_OPTIONS, *SINK_OPTIONS))


def test_every_name_that_people_try_is_answered_with_an_option_that_there_is() -> None:
    known = {option.name for option in (*KNOWN, *SINK_OPTIONS)}
    assert set(MEANT.values()) <= known
    assert not set(MEANT) & {name.lower() for name in known}


def test_an_unknown_option_like_no_other_is_refused_too() -> None:
    with pytest.raises(OptionError, match=r"no option 'zzz'\. The options are in"):
        parse({"zzz": "5"}, KNOWN)


def test_the_name_of_a_query_that_spark_adds_to_a_sink_is_no_option_of_it() -> None:
    assert parse({"queryname": "orders"}, CONNECTION_OPTIONS).given == frozenset()


def test_the_checkpoint_that_spark_adds_to_a_sink_is_no_option_of_it() -> None:
    assert parse({"checkpointlocation": "/x"}, CONNECTION_OPTIONS).given == frozenset()
    assert parse({"checkpointlocation": "/x"}, KNOWN)["checkpointLocation"] == "/x"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("maxMessagesPerTrigger", "0", "1 to 1000000"),
        ("maxMessagesPerTrigger", "many", "whole number"),
        ("maxMessagesPerTrigger", "-1", "whole number"),
        ("maxMessagesPerTrigger", "1e3", "whole number"),
        ("maxWaitTime", "soon", "a duration like"),
        ("maxWaitTime", "1d", "100ms to 15m"),
        ("maxBytesPerTrigger", "1x", "number of bytes"),
        ("readMode", "steal", "one of claim, browse"),
        ("failOnDataLoss", "maybe", "true or false"),
        ("queues", " , ", "1 to 1000 names"),
        ("queue", " ", "not empty"),
    ],
)
def test_a_wrong_value_is_refused_with_what_it_has_to_be(name: str, text: str, told: str) -> None:
    with pytest.raises(OptionError, match=f"'{name}' is .*{told}"):
        parse({name: text}, KNOWN)


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("500ms", 500), ("30s", 30_000), ("5m", 300_000), ("2", 2_000), ("7 s", 7_000)]
)
def test_durations_have_units_and_are_seconds_without(text: str, milliseconds: int) -> None:
    assert parse({"maxWaitTime": text}, KNOWN)["maxWaitTime"] == milliseconds


def test_sizes_have_units() -> None:
    assert parse({"maxBytesPerTrigger": "16m"}, KNOWN)["maxBytesPerTrigger"] == 16 << 20


def test_an_empty_connection_string_is_refused() -> None:
    with pytest.raises(OptionError, match=r"'connectionString' is \*\*\*"):
        parse({"connectionString": " "}, KNOWN)


@pytest.mark.parametrize(
    "given",
    [{}, {"connectionStringEnv": "A", "connectionStringFile": "/b"}, {"connectionString": "x", "endpoint": "y"}],
)
def test_exactly_one_option_says_which_namespace(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="says which namespace"):
        place_of(parse(given, KNOWN))


def test_an_endpoint_needs_a_credential_provider() -> None:
    with pytest.raises(OptionError, match="go together"):
        place_of(parse({"endpoint": "x.servicebus.windows.net"}, KNOWN))


def test_a_key_is_masked_wherever_it_stands() -> None:
    text = masked("Endpoint=sb://x;SharedAccessKeyName=n;SharedAccessKey=abc+/=;Entity sig=def&skn=n")
    assert "abc" not in text
    assert "def" not in text
    assert "SharedAccessKeyName=n" in text


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("subscribe", "is Kafka's; here 'queue' does this"),
        ("subscribePattern", "is Kafka's; here 'queuesPattern' does this"),
        ("kafka.bootstrap.servers", "is Kafka's; here 'connectionStringEnv' does this"),
        ("endingOffsetsByTimestamp", "is Kafka's; here 'endingTimestamp' does this"),
        ("kafka.security.protocol", "is Kafka's; here none does this"),
        ("eventhubs.connectionString", "is Event Hubs'; here 'connectionStringEnv' does this"),
        ("eventhubs.consumerGroup", "is Event Hubs'; here 'subscription' does this"),
        ("maxEventsPerTrigger", "is Event Hubs'; here 'maxMessagesPerTrigger' does this"),
    ],
)
def test_options_of_other_sources_are_answered_with_ours(name: str, told: str) -> None:
    with pytest.raises(OptionError, match=re.escape(f"The option '{name}' {told}.")):
        parse({name: "x"}, (*CONNECTION_OPTIONS, *SOURCE_OPTIONS))


def test_every_answer_to_an_option_of_another_source_is_an_option_there_is() -> None:
    known = {option.name for option in (*CONNECTION_OPTIONS, *SOURCE_OPTIONS)}
    assert {ours for ours in (*KAFKA.values(), *EVENT_HUBS.values()) if ours} <= known
