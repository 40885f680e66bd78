"""Filters and their verdicts: vectors of the whole language, and one for each way to fail."""

from __future__ import annotations

import uuid

import pytest

from duobus.codec import (
    Byte,
    Char,
    Decimal64,
    Described,
    Float32,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from duobus.errors import ArgumentInvalid
from duobus.model.descriptions import TypedValue
from kits.rules import PARAMETERS, VECTOR_MESSAGE, VECTOR_PROPERTIES, VECTORS, acted, rule, truth, verdict


@pytest.mark.parametrize(("sql", "expected"), VECTORS, ids=[f"{n:02}" for n in range(1, len(VECTORS) + 1)])
def test_vector_of_a_filter(sql: str, expected: str) -> None:
    if expected == "refused":
        with pytest.raises(ArgumentInvalid, match=r"at position \d+ "):
            rule(sql)
    else:
        assert verdict(sql, VECTOR_MESSAGE, PARAMETERS) == expected


def test_vectors_of_actions() -> None:
    assert type(acted("SET qty = qty / 2")["qty"]) is Int
    assert acted("SET qty = qty / 2")["qty"] == 2
    assert type(acted("SET price = 3")["price"]) is float
    assert acted("SET price = 3")["price"] == 3.0
    assert type(acted("SET x = newid()")["x"]) is uuid.UUID
    changed = acted("REMOVE vip; SET vip2 = vip")
    assert "vip" not in changed
    assert changed["vip2"] is None
    with pytest.raises(ArgumentInvalid, match=r"position 5 'sys.SequenceNumber'"):
        acted("SET sys.SequenceNumber = 1")
    changed = acted("SET [new one] = 'v', SET y = 1")
    assert (changed["new one"], changed["y"]) == ("v", 1)
    assert {name: changed[name] for name in VECTOR_PROPERTIES} == VECTOR_PROPERTIES


# -- E.4 types --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Byte, Short, Int, int, UByte, UShort, UInt, ULong, Float32, float])
def test_every_number_of_amqp_is_a_number(kind: type) -> None:
    assert truth("n = 7 AND n = 7.0 AND n + 1 = 8 AND n IN (1, 7) AND n < 8", {"n": kind(7)}) == "T"


def test_a_decimal_is_a_double() -> None:
    # 25 times ten to the power of -1, in the binary integer encoding.
    assert truth("n = 2.5", {"n": Decimal64(((398 - 1) << 53 | 25).to_bytes(8, "big"))}) == "T"
    assert truth("n < 0", {"n": Decimal64((1 << 63 | 398 << 53 | 25).to_bytes(8, "big"))}) == "T"
    assert truth("n > 1", {"n": Decimal64((0b11110 << 58).to_bytes(8, "big"))}) == "T"
    assert truth("n = n", {"n": Decimal64((0b11111 << 58).to_bytes(8, "big"))}) == "F"


@pytest.mark.parametrize("value", [b"binary", [1], {"a": 1}, Described(Symbol("x:y"), 1)])
def test_what_is_no_value_can_only_be_asked_for(value: object) -> None:
    properties = {"p": value}
    assert truth("EXISTS(p) AND p IS NOT NULL", properties) == "T"
    assert [truth(sql, properties) for sql in ("p = 'binary'", "p = p", "p IN (1)", "p LIKE '%'")] == ["U"] * 4
    assert truth("p + 1 = 1", properties) == "E"


def test_symbols_and_characters_are_strings() -> None:
    assert truth("s = 'abc' AND c = 'x'", {"s": Symbol("abc"), "c": Char("x")}) == "T"


def test_what_dotnet_describes_is_understood() -> None:
    properties = {
        "span": Described(Symbol("com.microsoft:timespan"), 7 * 864_000_000_000),
        "offset": Described(Symbol("com.microsoft:datetime-offset"), ULong(639_029_088_000_000_000)),
        "uri": Described(Symbol("com.microsoft:uri"), "http://x"),
        "when": Timestamp(1_767_312_000_000),
    }
    assert truth("uri LIKE 'http:%' AND offset = when AND (when + span) - span = when", properties) == "T"


# -- E.4 coercion -----------------------------------------------------------------------------------------------------

COERCIONS = [
    # int with int
    ("7 / 2 = 3 AND -7 / 2 = -3 AND 7 / -2 = -3", "T"),
    ("7 % 3 = 1 AND -7 % 3 = -1 AND 7 % -3 = 1", "T"),
    ("9223372036854775807 + 1 = 0", "E"),
    ("-9223372036854775807 - 2 = 0", "E"),
    ("4611686018427387904 * 2 = 0", "E"),
    ("(-9223372036854775807 - 1) / -1 = 0", "E"),
    ("-(-9223372036854775807 - 1) = 0", "E"),
    ("1 / 0 = 0", "E"),
    ("1 % 0 = 0", "E"),
    # int with double
    ("1 / 2.0 = 0.5 AND 3 * 0.5 = 1.5 AND 7.5 % 2 = 1.5", "T"),
    ("1 / 0.0 > 1e300 AND -1 / 0.0 < -1e300", "T"),
    ("0 / 0.0 = 0 / 0.0", "F"),
    ("9007199254740993 = 9007199254740992.0", "T"),
    # string
    ("'a' + 'b' = 'ab'", "T"),
    ("'a' < 'b' AND 'B' < 'a' AND 'a' <= 'a'", "T"),
    ("'a' + 1 = 'a1'", "E"),
    # a string is never converted
    ("color = 5", "U"),
    ("color <> 5", "U"),
    ("color = TRUE", "U"),
    ("color < @t", "U"),
    ("qty = '5'", "U"),
    ("NOT (qty = '5')", "U"),
    # times
    ("@t - when = @s", "T"),
    ("when + @s = @t AND @t - @s = when", "T"),
    ("@d + @d > @d AND @d - @d < @d AND -@d < @d", "T"),
    ("when < @t AND when <= when AND @d > -@d", "T"),
    ("when * 2 = when", "E"),
    ("@d + when = when", "E"),
    ("when = @d", "U"),
    ("when = 1767312000000", "U"),
    # GUIDs
    ("@g = 'AAAAAAAA-0000-4000-8000-00000000000A'", "T"),
    ("'AAAAAAAA-0000-4000-8000-00000000000A' = @g", "T"),
    ("@g IN ('x', 'AAAAAAAA-0000-4000-8000-00000000000A')", "T"),
    ("@g = 'x'", "F"),
    ("@g < @h AND @g <> @h", "T"),
    # booleans
    ("vip = TRUE AND vip <> FALSE", "T"),
    ("vip > FALSE", "U"),
    ("vip = 1", "U"),
    # any other arithmetic
    ("vip + 1 = 2", "E"),
    ("missing + vip = 2", "U"),
    ("vip + missing = 2", "U"),
    ("-color = 1", "E"),
    ("+color = 1", "E"),
    ("-missing = 1", "U"),
]
MORE_PARAMETERS = {
    **PARAMETERS,
    "s": TypedValue("duration", "P30D"),
    "g": TypedValue("guid", "aaaaaaaa-0000-4000-8000-00000000000a"),
    "H": TypedValue("guid", "BAAAAAAA-0000-4000-8000-00000000000A"),
}


@pytest.mark.parametrize(("sql", "expected"), COERCIONS)
def test_coercion(sql: str, expected: str) -> None:
    assert verdict(sql, VECTOR_MESSAGE, MORE_PARAMETERS) == expected


# -- E.4 three-valued logic -------------------------------------------------------------------------------------------

SQL_OF = {"T": "qty = 5", "F": "qty = 6", "U": "missing = 1", "E": "qty / 0 = 1"}
AND_TABLE = ["TTT", "TFF", "TUU", "FTF", "FFF", "FUF", "UTU", "UFF", "UUU"]
OR_TABLE = ["TTT", "TFT", "TUT", "FTT", "FFF", "FUU", "UTT", "UFU", "UUU"]
#: What is not needed is not evaluated, from left to right.
ERRORS = {"AND": ["FEF", "TEE", "UEE", "EFE"], "OR": ["TET", "FEE", "UEE", "ETE"]}


@pytest.mark.parametrize(
    ("word", "row"),
    [(word, row) for word, rows in (("AND", AND_TABLE), ("OR", OR_TABLE)) for row in rows + ERRORS[word]],
)
def test_truth_table(word: str, row: str) -> None:
    left, right, expected = row
    assert verdict(f"{SQL_OF[left]} {word} {SQL_OF[right]}") == expected


@pytest.mark.parametrize("row", ["TF", "FT", "UU", "EE"])
def test_not(row: str) -> None:
    assert verdict(f"NOT {SQL_OF[row[0]]}") == row[1]


UNKNOWN = [
    ("missing + 1 = 1", "U"),
    ("missing < 1", "U"),
    ("missing <> 1", "U"),
    ("missing = missing", "U"),
    ("missing LIKE 'a'", "U"),
    ("color LIKE missing", "U"),
    ("color LIKE 'a' ESCAPE missing", "U"),
    ("missing NOT LIKE 'a'", "U"),
    ("color LIKE NULL", "U"),
    ("missing IN (1, 2)", "U"),
    ("qty IN (5, missing)", "T"),
    ("qty IN (6, missing)", "U"),
    ("qty NOT IN (6, missing)", "U"),
    ("qty NOT IN (5, missing)", "F"),
    ("qty IN ('5')", "U"),
    ("color IN ('blue', 'red')", "T"),
    ("color NOT IN ('blue', 'red')", "F"),
    ("missing IS NULL", "T"),
    ("missing IS NOT NULL", "F"),
    ("nul IS NULL", "T"),
    ("qty IS NULL", "F"),
    ("EXISTS(nul)", "T"),
    ("EXISTS(NUL)", "T"),
    ("EXISTS(sys.Label)", "T"),
    ("EXISTS(sys.To)", "F"),
    ("sys.To = 'x'", "U"),
    ("nul = NULL", "U"),
    ("NULL = NULL", "U"),
    ("NULL IS NULL", "T"),
    ("(missing = 1) IS NULL", "T"),
    ("missing AND qty = 5", "U"),
    ("NOT missing", "U"),
    ("property(missing) = 1", "U"),
]


@pytest.mark.parametrize(("sql", "expected"), UNKNOWN)
def test_unknown(sql: str, expected: str) -> None:
    assert verdict(sql) == expected


@pytest.mark.parametrize(
    "sql",
    ["qty", "NOT qty", "qty AND TRUE", "TRUE AND qty", "color OR TRUE", "qty + 1", "property(qty) = 1", "sys.Label"],
)
def test_what_has_to_be_boolean_or_a_name_and_is_not_fails(sql: str) -> None:
    assert verdict(sql) == "E"


# -- E.4 properties and functions -------------------------------------------------------------------------------------


def test_names_differ_not_by_case_unless_two_do() -> None:
    properties = {"Color": "first", "COLOR": "second"}
    assert truth("Color = 'first' AND COLOR = 'second' AND color = 'first'", properties) == "T"
    assert truth("[COLOR] = 'x' AND EXISTS(cOLOR)", {"color": "x"}) == "T"
    assert truth("color = 1 AND Color = 2 AND COLOR = 1", {"Color": 2, "color": 1}) == "T"


def test_every_system_property_can_be_read() -> None:
    fields = ["id", b"user", "to", "label", "reply", "corr", Symbol("text/plain"), None, None, None, "s", None, "rs"]
    sql = (
        "sys.MessageId = 'id' AND sys.To = 'to' AND sys.Label = 'label' AND sys.Subject = 'label' AND "
        "sys.ReplyTo = 'reply' AND sys.CorrelationId = 'corr' AND sys.ContentType = 'text/plain' AND "
        "sys.SessionId = 's' AND sys.ReplyToSessionId = 'rs' AND sys.DeliveryCount = 0 AND SYS.size > 10 AND "
        "sys.DeadLetterSource IS NULL AND sys.ForcePersistence IS NULL AND sys.LockedUntilUtc IS NULL AND "
        "sys.LockToken IS NULL AND sys.State IS NULL AND sys.PartitionKey IS NULL AND sys.ViaPartitionKey IS NULL AND "
        "sys.TimeToLive IS NULL AND sys.ExpiresAtUtc IS NULL AND sys.ScheduledEnqueueTimeUtc IS NULL"
    )
    assert truth(sql, {}, fields) == "T"


@pytest.mark.parametrize(
    ("message_id", "text"),
    [
        (ULong(7), "7"),
        (uuid.UUID(int=10), "00000000-0000-0000-0000-00000000000a"),
        (b"\x01\xff", "01ff"),
    ],
)
def test_a_message_id_of_another_type_is_read_as_its_text(message_id: object, text: str) -> None:
    assert truth(f"sys.MessageId = '{text}'", {}, [message_id]) == "T"


def test_newid_is_new_each_time() -> None:
    assert verdict("newid() <> newid() AND newid() IS NOT NULL AND (newid() LIKE '%') IS NULL") == "T"


def test_a_property_can_be_named_by_an_expression() -> None:
    assert verdict("property('a' + ' ' + 'b') = 1 AND p('QTY') = 5 AND P('no') IS NULL") == "T"


def test_a_text_that_grows_without_end_is_an_error() -> None:
    assert truth("t + t = 'x'", {"t": "x" * 40_000}) == "E"
