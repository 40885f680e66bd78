"""The table of prices: what a file may say, and exact money."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from duobus.model.metering import KINDS
from duobus.spark.errors import OptionError
from duobus.spark.jobs.usage import sources_of
from duobus.spark.prices import Prices, plain, read_prices


def prices(tmp_path: Path, text: str) -> Prices:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    return read_prices(path)


def test_the_example_of_the_package_prices_every_kind() -> None:
    table = read_prices()
    # Relays are told apart: Azure counts them by listener hours and messages of its own size.
    assert table.unpriced({kind for kind in KINDS if not kind.startswith("relay-")}) == []
    assert table.unpriced(set(KINDS)) == sorted(kind for kind in KINDS if kind.startswith("relay-"))
    assert table.cost("send", 1_000_000, 0) == Decimal("1.000000000")
    assert table.cost("settle", 1_000_000, 1 << 40) == 0


@pytest.mark.parametrize(
    ("operations", "size", "cost"),
    [
        (1, 0, "0.000000800"),
        (13_000_000, 0, "10.400000000"),
        # Half a billionth is rounded up, less is not.
        (0, 1 << 29, "0.250000001"),
        (0, (1 << 29) - 1, "0.250000000"),
        (3, 1 << 30, "0.500002401"),
    ],
)
def test_a_cost_is_exact_to_the_billionth(tmp_path: Path, operations: int, size: int, cost: str) -> None:
    table = prices(tmp_path, 'currency = "USD"\n[operations]\nsend = 0.8\n[gib]\nsend = 0.500000001\n')
    assert plain(table.cost("send", operations, size)) == cost


def test_a_kind_without_a_price_costs_nothing_and_is_told(tmp_path: Path) -> None:
    table = prices(tmp_path, 'currency = "USD"\n[operations]\nsend = 1\n')
    assert table.cost("receive", 10**9, 10**12) == 0
    assert table.unpriced({"send", "receive", "peek"}) == ["peek", "receive"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "'currency'"),
        ("currency = 1", "'currency'"),
        ("currency = ", "not TOML"),
        ('currency = "X"\noperation = 1', "Do you mean 'operations'"),
        ('currency = "X"\noperations = 1', "must be a table"),
        ('currency = "X"\n[operations]\nsned = 1', "Do you mean 'operations.send'"),
        ('currency = "X"\n[operations]\nsend = "1"', "'operations.send' must be a number"),
        ('currency = "X"\n[operations]\nsend = true', "must be a number"),
        ('currency = "X"\n[operations]\nsend = -0.1', "from 0"),
        ('currency = "X"\n[operations]\nsend = nan', "from 0"),
        ('currency = "X"\n[operations]\nsend = inf', "from 0"),
        ('currency = "X"\n[operations]\nsend = 1000000000', "below 1000000000"),
        ('currency = "X"\n[operations]\nsend = 1e999999999', "prices.toml"),
        ('currency = "X"\n[gib]\nsend = 0.0000000001', "at most 9 decimals"),
        ('currency = "X"\n[hours]\nqueue = 1', "hours.namespace"),
        ("#" + "x" * 65_536, "65536 bytes"),
        ("a = " + "[" * 10_000, "not TOML"),
    ],
)
def test_what_is_no_table_of_prices_is_refused_by_name(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(OptionError, match=r"prices\.toml") as error:
        prices(tmp_path, text)
    assert told in str(error.value)


def test_a_file_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read: No such file"):
        read_prices(tmp_path / "none.toml")


def test_prices_that_differ_by_a_billionth_are_different_sources(tmp_path: Path) -> None:
    files = ["file:/t/day=2026-11-21/part-1.parquet", "file:/t/day=2026-11-21/part-2.parquet"]
    one, two = (prices(tmp_path, f'currency = "X"\n[operations]\nsend = {price}') for price in ("1.0", "1.000000001"))
    same = prices(tmp_path, '# The same.\ncurrency = "X"\n[hours]\n[operations]\nsend = 1\n')
    assert sources_of(files, one) == sources_of(reversed(files), same)
    assert sources_of(files, one) != sources_of(files, two)
    assert sources_of(files, one) != sources_of(files[:1], one)
    with pytest.raises(OptionError, match="no file of compacted"):
        sources_of(["file:/t/part-1.parquet"], one)
