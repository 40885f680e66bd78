"""Prices of operations: a table that is read from a file, never a constant.

Pure. Money is a decimal with nine places: an amount is computed as an integer in billionths and rounded half up once,
so that Spark and this module agree to the last place.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from duobus.model.metering import KINDS
from duobus.spark.errors import OptionError

#: Places of an amount; a price has as many at most.
PLACES: Final = 9
#: Billionths of the currency in one of it.
UNIT: Final = 10**PLACES
#: A price stays below it, so that its product with a count fits into Spark's decimals.
PRICE_MAX: Final = 1_000_000_000
#: Bytes of a file with prices.
FILE_BYTES_MAX: Final = 65_536

PER_MILLION: Final = 1_000_000
PER_GIB: Final = 1 << 30

_SECTIONS: Final = ("operations", "gib", "hours")


@dataclass(frozen=True, slots=True)
class Prices:
    """A table of prices, in billionths of the currency.

    Attributes:
        currency: Currency of the amounts.
        operations: Price per million operations of each kind.
        gib: Price per GiB of payload of each kind.
        namespace_hour: Price per hour in which a namespace metered anything.
        digest: A text that differs for different tables.
    """

    currency: str
    operations: dict[str, int]
    gib: dict[str, int]
    namespace_hour: int
    digest: str

    def cost(self, kind: str, operations: int, size_bytes: int) -> Decimal:
        """Return the cost of an amount of one kind."""
        for_operations = rounded(operations * self.operations.get(kind, 0), PER_MILLION)
        return amount(for_operations + rounded(size_bytes * self.gib.get(kind, 0), PER_GIB))

    def unpriced(self, kinds: set[str]) -> list[str]:
        """Return which of these kinds have no price, not even a price of 0."""
        return sorted(kinds - self.operations.keys())


def rounded(product: int, divisor: int) -> int:
    """Return a quotient of whole numbers, rounded half up."""
    return (product + divisor // 2) // divisor


def amount(billionths: int) -> Decimal:
    """Return an amount of the currency."""
    return Decimal(billionths).scaleb(-PLACES)


def plain(money: Decimal) -> str:
    """Return an amount as text: exact, and never as a power of ten."""
    return format(money, "f")


def read_prices(path: str | Path | None = None) -> Prices:
    """Return the table in a file; by default the example that comes with the package.

    Raises:
        OptionError: The file cannot be read, or is not a table of prices. The text names the file and the place.
    """
    name = "the example of prices" if path is None else str(path)
    try:
        content = (files("duobus.spark") / "prices.toml").read_bytes() if path is None else _content(Path(path))
    except OSError as error:
        raise OptionError(f"The prices in {name} cannot be read: {error.strerror}.") from error
    if len(content) > FILE_BYTES_MAX:
        raise OptionError(f"The file of prices {name} has more than {FILE_BYTES_MAX} bytes.")
    try:
        document = tomllib.loads(content.decode(), parse_float=Decimal)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, ArithmeticError, RecursionError) as error:
        raise OptionError(f"The file of prices {name} is not TOML: {error}") from error
    return _prices(document, name)


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(FILE_BYTES_MAX + 1)


def _prices(document: dict[str, Any], name: str) -> Prices:
    _demand_known(document, ("currency", *_SECTIONS), "", name)
    currency = document.get("currency")
    if not isinstance(currency, str) or not 0 < len(currency) <= 16:
        raise OptionError(f"{name}: 'currency' must be a name of 16 characters at most.")
    found: dict[str, dict[str, int]] = {}
    for section in _SECTIONS:
        table = document.get(section, {})
        if not isinstance(table, dict):
            raise OptionError(f"{name}: '{section}' must be a table, [{section}].")
        _demand_known(table, ("namespace",) if section == "hours" else tuple(KINDS), section + ".", name)
        found[section] = {key: _billionths(value, f"{section}.{key}", name) for key, value in table.items()}
    hour = found["hours"].get("namespace", 0)
    told = repr((currency, sorted(found["operations"].items()), sorted(found["gib"].items()), hour))
    digest = hashlib.sha256(told.encode()).hexdigest()[:16]
    return Prices(currency, found["operations"], found["gib"], hour, digest)


def _demand_known(table: dict[str, Any], known: tuple[str, ...], prefix: str, name: str) -> None:
    for key in table:
        if key not in known:
            near = get_close_matches(key, known, 1) or known
            raise OptionError(f"{name}: '{prefix}{key[:64]}' is unknown. Do you mean '{prefix}{near[0]}'?")


def _billionths(value: object, key: str, name: str) -> int:
    # A bool is an int, and no price.
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise OptionError(f"{name}: '{key}' must be a number.")
    price = Decimal(value)
    if not price.is_finite() or not 0 <= price < PRICE_MAX:
        raise OptionError(f"{name}: '{key}' is {value}; a price is from 0 to below {PRICE_MAX}.")
    billionths = price.scaleb(PLACES)
    if billionths != billionths.to_integral_value():
        raise OptionError(f"{name}: '{key}' is {value}; a price has at most {PLACES} decimals.")
    return int(billionths)
