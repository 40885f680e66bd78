"""Where a messaging store in PostgreSQL is: an address without secrets to be recorded and shown, and what it hides.

Pure, and without the driver: the command line checks addresses before it knows whether the driver is installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode

from duobus.errors import ConfigurationError

SCHEMES: Final = ("postgresql://", "postgres://")
#: Characters of an address.
LENGTH_MAX: Final = 2000
#: Bytes that PostgreSQL gives a name.
NAME_LENGTH_MAX: Final = 63

_NAME = re.compile(rf"[a-z_][a-z0-9_]{{0,{NAME_LENGTH_MAX - 1}}}")
#: Parameters of ours; everything else is libpq's.
_SCHEMA, _UNSAFE = "schema", "unsafe_no_sync"
_SECRETS: Final[tuple[str, ...]] = ("password", "sslpassword")
#: What a session is opened with unless the address says otherwise. A standby refuses what a store does, so that it is
#: passed over; a peer that has vanished is noticed within about 15 seconds; the tries of a reopening are short.
_DEFAULTS: Final = {
    "target_session_attrs": "read-write",
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}
#: What PostgreSQL is told of its side of a session. Without it a server that was cut off keeps what it has locked for
#: as long as the system believes in silent connections, which is hours.
SERVER_SIDE: Final = (
    "tcp_keepalives_idle = 5",
    "tcp_keepalives_interval = 2",
    "tcp_keepalives_count = 3",
    "tcp_user_timeout = 15000",
)


def is_postgres(path: str) -> bool:
    """Whether a path of the catalog is that of a store in PostgreSQL."""
    return path.startswith(SCHEMES)


#: Schema of a catalog that servers share.
CATALOG_SCHEMA: Final = "duobus_catalog"


class PostgresAddress:
    """A parsed address.

    Attributes:
        url: Without secrets, to be recorded, logged and shown; with the schema, if it has one.
        schema: Schema of the database in which the store is, or None.
        is_unsafe: Whether its owner does without durability.
    """

    __slots__ = ("_address", "_parameters", "_secrets", "is_unsafe", "schema", "url")

    def __init__(
        self, address: str, parameters: dict[str, str], secrets: dict[str, str], schema: str | None, is_unsafe: bool
    ) -> None:
        self._address = address
        self._parameters = parameters
        self._secrets = secrets
        self.schema = schema
        self.is_unsafe = is_unsafe
        own = ({_SCHEMA: schema} if schema is not None else {}) | ({_UNSAFE: "1"} if is_unsafe else {})
        self.url = _with(address, parameters | own)

    def __repr__(self) -> str:
        return f"Place({self.url!r})"

    @property
    def server(self) -> str:
        """The address without parameters: who serves which database to whom."""
        return self._address

    def in_schema(self, schema: str) -> PostgresAddress:
        """The same with a schema."""
        return PostgresAddress(self._address, self._parameters, self._secrets, schema, self.is_unsafe)

    def in_database(self) -> PostgresAddress:
        """The same without a schema."""
        return PostgresAddress(self._address, self._parameters, self._secrets, None, self.is_unsafe)

    def conninfo(self) -> tuple[str, dict[str, str]]:
        """What the driver is given: libpq's address, and what goes beside it and is never shown."""
        missing = {name: value for name, value in _DEFAULTS.items() if name not in self._parameters}
        return _with(self._address, self._parameters), missing | self._secrets


def parse(text: str, what: str = "a messaging store") -> PostgresAddress:
    """Take an address apart; ``what`` it is the address of, for the text of an error.

    Raises:
        ConfigurationError: It is none; the text says what to write, and never tells a password.
    """
    scheme = next((scheme for scheme in SCHEMES if text.startswith(scheme)), None)
    if scheme is None:
        # Not repeated: who mistypes the scheme may have written a password behind it.
        raise ConfigurationError(f"The address of {what} begins with postgresql://user@host/database.")
    if len(text) > LENGTH_MAX or not text.isprintable():
        raise ConfigurationError(f"The address of {what} is printable text of {LENGTH_MAX} characters at most.")
    address, _, query = text[len(scheme) :].partition("?")
    login, has_login, place = address.rpartition("@")
    user, _, password = login.partition(":")
    hosts, _, database = place.partition("/")
    pairs = parse_qsl(query, keep_blank_values=True)
    parameters = dict(pairs)
    if len(parameters) != len(pairs):
        raise ConfigurationError(f"The address of {what} names a parameter twice.")
    secrets: dict[str, str] = {name: parameters.pop(name) for name in _SECRETS if name in parameters}
    if password:
        secrets["password"] = unquote(password)
    schema = parameters.pop(_SCHEMA, None)
    unsafe = parameters.pop(_UNSAFE, "0")
    if unsafe not in ("0", "1"):
        raise ConfigurationError("unsafe_no_sync of the address of a messaging store is 0 or 1.")
    if schema is not None:
        check_schema(schema)
    if not database and "dbname" not in parameters:
        raise ConfigurationError(f"The address of {what} names no database: postgresql://user@host/database.")
    bare = f"{quote(unquote(user), safe='')}@" if has_login and user else ""
    return PostgresAddress(f"{SCHEMES[0]}{bare}{hosts}/{database}", parameters, secrets, schema, unsafe == "1")


def catalog_place(url: str) -> PostgresAddress:
    """Where a shared catalog is: in a schema of its own, which the address may name.

    Raises:
        ConfigurationError: The address cannot be read; the text never tells a password.
    """
    place = parse(url, "a catalog that servers share")
    return place.in_schema(place.schema or CATALOG_SCHEMA)


@contextmanager
def driver_needed() -> Iterator[None]:
    """Imports that need the driver of PostgreSQL, which is an extra.

    Raises:
        ConfigurationError: The driver is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(
            f"Stores in PostgreSQL need more than is installed ({error}): pip install 'duobus[postgres]'"
        ) from error


def leases_schema(identity: int) -> str:
    """Where a database that is not the catalog's keeps the leases of its stores: a schema for each catalog."""
    return f"duobus_leases_{identity:x}"


def check_schema(schema: str) -> None:
    """Refuse what could need quotes.

    Raises:
        ConfigurationError: It does.
    """
    if not _NAME.fullmatch(schema):
        raise ConfigurationError(
            f"The schema of a messaging store has small letters, digits and underscores, {NAME_LENGTH_MAX} at most."
        )


def _with(address: str, parameters: dict[str, str]) -> str:
    return address + (f"?{urlencode(parameters, quote_via=quote)}" if parameters else "")
