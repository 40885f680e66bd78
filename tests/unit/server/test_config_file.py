"""The emulator's configuration format and what goes beyond it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duobus.errors import ConfigurationError
from duobus.model.descriptions import QueueDescription, RuleDescription
from duobus.model.topology.config_file import FILE_BYTES_MAX, parse_config, parse_json_with_comments, read_config_file

_SAMPLE = """
// The shape of the sample that many programs rely on.
{
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns",
        "Queues": [
          {
            "Name": "queue.1",
            "Properties": {
              "DeadLetteringOnMessageExpiration": false,
              "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "ForwardDeadLetteredMessagesTo": "",
              "ForwardTo": "",
              "LockDuration": "PT1M",
              "MaxDeliveryCount": 3,
              "RequiresDuplicateDetection": false,
              "RequiresSession": false, /* a trailing comma */
            },
          },
        ],
        "Topics": [
          {
            "Name": "topic.1",
            "Properties": {"DefaultMessageTimeToLive": "PT1H", "RequiresDuplicateDetection": false},
            "Subscriptions": [
              {
                "Name": "subscription.1",
                "Properties": {"LockDuration": "PT1M", "MaxDeliveryCount": 3, "RequiresSession": false},
                "Rules": [{"Name": "app-prop-filter-1", "Properties": {
                  "FilterType": "Correlation",
                  "CorrelationFilter": {"ContentType": "application/json", "Properties": {"prop1": "value1"}}}}]
              },
              {"Name": "subscription.3"},
              {
                "Name": "subscription.4",
                "Rules": [{"Name": "sql-filter-1", "Properties": {
                  "FilterType": "Sql",
                  "SqlFilter": {"SqlExpression": "sys.MessageId = '123456' AND userProp1 = 'value1'"},
                  "Action": {"SqlExpression": "SET sys.To = 'Entity'"}}}]
              }
            ]
          }
        ]
      }
    ],
    "Logging": {"Type": "File"}
  }
}
"""


def _config(*queues: dict[str, Any], **namespace: Any) -> str:
    return json.dumps({"UserConfig": {"Namespaces": [{"Name": "n", "Queues": list(queues), **namespace}]}})


def _queue(**properties: Any) -> QueueDescription:
    return parse_config(_config({"Name": "q", "Properties": properties})).namespaces[0].queues[0]


def test_a_file_of_the_emulators_shape_is_read_whole() -> None:
    contents = parse_config(_SAMPLE)
    (namespace,) = contents.namespaces
    assert namespace.name == "sbemulatorns"
    (queue,) = namespace.queues
    assert (queue.name, queue.lock_duration_ms, queue.max_delivery_count) == ("queue.1", 60_000, 3)
    assert queue.forward_to is None
    (topic,) = namespace.topics
    first, third, fourth = topic.subscriptions
    assert first.rules[0].correlation_filter == {"ContentType": "application/json", "Properties": {"prop1": "value1"}}
    assert third.rules == (RuleDescription(name="$Default"),)
    assert fourth.rules[0].sql_filter == "sys.MessageId = '123456' AND userProp1 = 'value1'"
    assert fourth.rules[0].sql_action == "SET sys.To = 'Entity'"
    assert contents.warnings == ()


def test_a_minimal_file_gets_the_emulators_defaults() -> None:
    queue = _queue()
    assert queue.default_message_time_to_live_ms == 3_600_000
    assert queue.lock_duration_ms == 60_000
    assert queue.max_delivery_count == 3
    assert queue.duplicate_detection_history_time_window_ms == 20_000
    assert not queue.enable_partitioning


def test_values_beyond_the_emulators_are_taken() -> None:
    queue = _queue(
        EnablePartitioning=True,
        MaxDeliveryCount=2_000,
        DefaultMessageTimeToLive="P10675199DT2H48M5.4775807S",
        LockDuration="PT5S",
        AutoDeleteOnIdle="PT5M",
        MaxMessageSizeInKilobytes=1024,
        MaxSizeInMegabytes=5120,
        UserMetadata="x",
        Status="SendDisabled",
        SupportOrdering=True,
    )
    assert queue.enable_partitioning
    assert queue.default_message_time_to_live_ms is None
    assert queue.max_message_size_bytes == 1_048_576
    assert (queue.max_delivery_count, queue.status, queue.support_ordering) == (2_000, "SendDisabled", True)


def test_several_namespaces_with_hosts_and_access_rules_are_read() -> None:
    """IN3."""
    rule = {"KeyName": "s", "PrimaryKey": "one", "Rights": ["Send"]}
    text = json.dumps(
        {
            "UserConfig": {
                "Namespaces": [
                    {"Name": "Contoso", "HostNames": ["Bus.Example.NET"], "AuthorizationRules": [rule]},
                    {"Name": "fabrikam", "Queues": [{"Name": "q"}]},
                ]
            }
        }
    )
    contents = parse_config(text)
    first, second = contents.namespaces
    assert (first.name, first.hosts, second.name) == ("contoso", ("bus.example.net",), "fabrikam")
    assert (first.rules[0].name, first.rules[0].secondary_key, first.rules[0].rights) == ("s", "one", 2)
    assert contents.warnings == ()


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"ForwardTo": "other"}, "ForwardTo"),
        ({"ForwardDeadLetteredMessagesTo": "other"}, "ForwardDeadLetteredMessagesTo"),
        ({"Colour": "red"}, "Colour"),
    ],
)
def test_what_may_be_a_mistake_is_kept_and_named_in_a_warning(properties: dict[str, Any], named: str) -> None:
    contents = parse_config(_config({"Name": "q", "Properties": properties}))
    (warning,) = contents.warnings
    assert warning.startswith("$.UserConfig.Namespaces[0].Queues[0]")
    assert named in warning
    assert len(contents.namespaces[0].queues) == 1


@pytest.mark.parametrize(
    ("properties", "path"),
    [
        ({"LockDuration": "1 minute"}, ".Properties.LockDuration: '1 minute'"),
        ({"LockDuration": "PT"}, ".Properties.LockDuration"),
        ({"LockDuration": 60}, ".Properties.LockDuration: text is needed, not a whole number"),
        ({"LockDuration": "P10675199D"}, ".Properties.LockDuration: this duration cannot be infinite"),
        ({"LockDuration": "PT4S"}, ": LockDuration"),
        ({"MaxDeliveryCount": "3"}, ".Properties.MaxDeliveryCount: a whole number is needed, not text"),
        ({"MaxDeliveryCount": True}, ".Properties.MaxDeliveryCount: a whole number is needed, not true or false"),
        ({"MaxDeliveryCount": 3.5}, ".Properties.MaxDeliveryCount: a whole number is needed, not a number"),
        ({"MaxDeliveryCount": None}, ".Properties.MaxDeliveryCount: this member is needed"),
        ({"MaxDeliveryCount": 0}, ": MaxDeliveryCount is 0"),
        ({"RequiresSession": 1}, ".Properties.RequiresSession: true or false is needed"),
        ({"Status": "Creating"}, ": Status"),
        ({"MaxSizeInMegabytes": 7}, ": MaxSizeInMegabytes"),
    ],
)
def test_a_wrong_property_is_an_error_with_its_path(properties: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_config(_config({"Name": "a"}, {"Name": "q", "Properties": properties}))
    assert str(caught.value).startswith("$.UserConfig.Namespaces[0].Queues[1]" + path)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([], "$: an object is needed, not a list"),
        ({}, "$.UserConfig: this member is needed"),
        ({"UserConfig": {}}, "$.UserConfig.Namespaces: this member is needed"),
        ({"UserConfig": {"Namespaces": [1]}}, "$.UserConfig.Namespaces[0]: an object is needed"),
        ({"UserConfig": {"Namespaces": [{}]}}, "$.UserConfig.Namespaces[0].Name"),
        ({"UserConfig": {"Namespaces": [{"Name": "a b"}]}}, "$.UserConfig.Namespaces[0].Name"),
        ({"UserConfig": {"Namespaces": [{"Name": ""}]}}, "$.UserConfig.Namespaces[0].Name"),
        ({"UserConfig": {"Namespaces": [{"Name": "n"}, {"Name": "N"}]}}, "$.UserConfig.Namespaces[1]"),
        ({"UserConfig": {"Namespaces": [{"Name": "n", "HostNames": [1]}]}}, "$.UserConfig.Namespaces[0].HostNames"),
    ],
)
def test_a_wrong_frame_of_the_file_is_an_error_with_its_path(value: object, path: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_config(json.dumps(value))
    assert str(caught.value).startswith(path)


def test_two_entities_of_one_name_are_refused_whatever_their_kind() -> None:
    with pytest.raises(ConfigurationError, match="'X/Y'"):
        parse_config(_config({"Name": "x/y"}, Topics=[{"Name": "X/Y"}]))


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        ({"Properties": {"FilterType": "Sql"}}, "Rules[0].Name"),
        ({"Name": "r"}, "Rules[0].Properties"),
        ({"Name": "r", "Properties": {"FilterType": "Sql"}}, "Rules[0].Properties: FilterType is Sql"),
        ({"Name": "r", "Properties": {"FilterType": "Regex"}}, "Rules[0].Properties.FilterType"),
        (
            {"Name": "r", "Properties": {"FilterType": "Correlation", "CorrelationFilter": {}}},
            "Rules[0].Properties: FilterType is Correlation",
        ),
        (
            {"Name": "r", "Properties": {"FilterType": "Sql", "SqlFilter": {"Text": "1=1"}}},
            "Rules[0].Properties.SqlFilter.SqlExpression",
        ),
    ],
)
def test_a_rule_without_what_its_type_needs_is_refused(rule: dict[str, Any], path: str) -> None:
    topic = {"Name": "t", "Subscriptions": [{"Name": "s", "Rules": [rule]}]}
    with pytest.raises(ConfigurationError) as caught:
        parse_config(_config(Topics=[topic]))
    assert f"Topics[0].Subscriptions[0].{path}" in str(caught.value)


@pytest.mark.parametrize(
    "rule",
    [
        {"KeyName": "r", "PrimaryKey": "k", "Rights": ["Manage"]},
        {"KeyName": "r", "PrimaryKey": "", "Rights": ["Send"]},
        {"KeyName": "r", "PrimaryKey": "k", "Rights": ["Fly"]},
        {"KeyName": "r", "PrimaryKey": "k", "Rights": [[]]},
        {"KeyName": "r", "PrimaryKey": "k", "Rights": []},
        {"PrimaryKey": "k", "Rights": ["Send"]},
    ],
)
def test_an_access_rule_that_cannot_be_meant_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="AuthorizationRules"):
        parse_config(_config(AuthorizationRules=[rule]))


# --- comments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": "// no comment", "b": "/* nor */ this,]"}', {"a": "// no comment", "b": "/* nor */ this,]"}),
        ('["\\"//", 1] // c', ['"//', 1]),
        ("[1, /* a */ 2 /* b */ ]", [1, 2]),
        ("[1, // a\n /* b */ // c\n]", [1]),
        ("/**/[1,]", [1]),
        ("[[1,],]", [[1]]),
    ],
)
def test_comments_and_trailing_commas_are_left_out(text: str, value: object) -> None:
    assert parse_json_with_comments(text) == value


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[1,,]", "line 1"),
        ("{\n// c\n 'a': 1}", "line 3, column 2"),
        ("[/* open", "line 1"),
        ('{"a": 1, "a": 2}', "'a' stands twice"),
        ("[NaN]", "NaN"),
        ("[" * 200_000, "nested"),
        ("9" * 5000, "digits"),
    ],
)
def test_what_is_no_json_is_refused_with_its_place(text: str, place: str) -> None:
    with pytest.raises(ConfigurationError, match=place):
        parse_json_with_comments(text)


def test_many_comments_take_no_more_than_linear_time() -> None:
    assert parse_json_with_comments("[1, " + "/* a */ " * 20_000 + "2]") == [1, 2]


@given(st.text(alphabet='[]{},:"\\/* \n1a', max_size=60))
def test_arbitrary_text_is_a_value_or_a_configuration_error(text: str) -> None:
    try:
        found = parse_json_with_comments(text)
    except ConfigurationError:
        return
    assert found == parse_json_with_comments(json.dumps(found))


def test_an_oversized_file_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "big.json"
    with path.open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    with pytest.raises(ConfigurationError, match="larger"):
        read_config_file(path)


def test_a_byte_order_mark_at_the_start_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "Config.json"
    path.write_bytes(b"\xef\xbb\xbf" + _SAMPLE.encode())
    assert read_config_file(path).namespaces[0].name == "sbemulatorns"


def test_a_subscription_that_forwards_is_read_without_a_warning() -> None:
    subscription = {"Name": "s", "Properties": {"ForwardTo": "q"}}
    contents = parse_config(_config(Queues=[{"Name": "q"}], Topics=[{"Name": "t", "Subscriptions": [subscription]}]))
    assert contents.namespaces[0].topics[0].subscriptions[0].forward_to == "q"
    assert contents.warnings == ()
