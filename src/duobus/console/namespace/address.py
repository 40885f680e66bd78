"""Where a namespace is and which key opens the namespace, as a connection string tells."""

from __future__ import annotations

import re
from typing import Final, Self
from urllib.parse import SplitResult, urlsplit

from duobus.errors import ArgumentInvalid

#: Where an emulator manages entities when its address names no port.
EMULATOR_HTTP_PORT: Final = 5300

#: A connection string of some hundred characters is usual; one of this length is none.
_LENGTH_MAX: Final = 8_192
_FORM: Final = (
    "This is no connection string. Connection strings have the form Endpoint=sb://HOST;SharedAccessKeyName=NAME;"
    "SharedAccessKey=KEY."
)
_SECRET: Final = re.compile(r"(?i)(SharedAccessKey|SharedAccessSignature|\bsig)=[^;&\s]+")


class NamespaceAddress:
    """One namespace, taken apart.

    Args:
        connection_string: As applications have it; without name and key of a rule for a place that needs a key first.
        management_url: Base URL of the management API, where the connection string does not lead there.

    Raises:
        ArgumentInvalid: The text is no connection string; the error does not quote the text, which may hold a key.
    """

    def __init__(self, connection_string: str, management_url: str | None = None) -> None:
        if len(connection_string) > _LENGTH_MAX:
            raise ArgumentInvalid(_FORM)
        parts = (part.partition("=") for part in connection_string.strip().rstrip(";").split(";"))
        self._members = {name.strip().lower(): (name.strip(), value) for name, _, value in parts}
        address = _split(self._member("endpoint"), {"sb"})
        self.host = address.hostname or ""
        self.netloc = address.netloc
        self.is_emulator = self._member("usedevelopmentemulator").lower() == "true"
        self.management_url = management_url
        if management_url is not None:
            other = _split(management_url, {"http", "https"})
            self.is_plain, self._managed_at = other.scheme == "http", other.netloc
        else:
            self.is_plain, self._managed_at = self.is_emulator, address.netloc
            if self.is_emulator and address.port is None:
                self._managed_at = f"{address.netloc}:{EMULATOR_HTTP_PORT}"

    def _member(self, name: str) -> str:
        return self._members.get(name, ("", ""))[1]

    @property
    def rule_name(self) -> str:
        """Name of the access rule; empty when the connection string has none."""
        return self._member("sharedaccesskeyname")

    @property
    def key(self) -> str:
        """Key of the access rule; empty when the connection string has none."""
        return self._member("sharedaccesskey")

    @property
    def entity(self) -> str:
        """Path of the only entity that the key opens; empty for the whole namespace."""
        return self._member("entitypath").strip("/")

    @property
    def url(self) -> str:
        """Base URL of the management API."""
        return f"{'http' if self.is_plain else 'https'}://{self._managed_at}"

    @property
    def messaging_endpoint(self) -> str | None:
        """Where messages go when that is another port than the SDK would take over TLS."""
        return None if self.is_emulator or ":" not in self.netloc else f"sb://{self.netloc}"

    @property
    def text(self) -> str:
        """The connection string."""
        return self._text_at(self.netloc)

    @property
    def management_text(self) -> str:
        """The connection string for the administration client."""
        return self._text_at(self._managed_at)

    def _text_at(self, netloc: str) -> str:
        others = (f"{name}={value}" for low, (name, value) in self._members.items() if low != "endpoint")
        return ";".join((f"Endpoint=sb://{netloc}", *others))

    def with_key(self, rule_name: str, key: str) -> Self:
        """The same namespace, opened by another access rule.

        Raises:
            ArgumentInvalid: Name or key hold a character that cannot be in a connection string.
        """
        if not rule_name or not key or re.search(r"[;\s]", rule_name + key):
            raise ArgumentInvalid("Give the name of an access rule and one of its two keys.")
        kept = [
            f"{name}={value}"
            for low, (name, value) in self._members.items()
            if low not in {"sharedaccesskeyname", "sharedaccesskey"}
        ]
        return type(self)(
            ";".join((*kept, f"SharedAccessKeyName={rule_name}", f"SharedAccessKey={key}")), self.management_url
        )

    def is_same_place(self, other: NamespaceAddress) -> bool:
        """Whether another address leads to the same namespace, whichever key it has."""
        return (self.netloc.lower(), self.url.lower()) == (other.netloc.lower(), other.url.lower())

    def masked(self, text: str) -> str:
        """Return a text without the key of this address and without the signatures of tokens."""
        if self.key:
            text = text.replace(self.key, "***")
        return _SECRET.sub(r"\1=***", text)


def _split(url: str, schemes: set[str]) -> SplitResult:
    try:
        found = urlsplit(url)
        if not found.hostname or found.scheme not in schemes or found.username is not None:
            raise ValueError(url)
        _ = found.port
    except ValueError:
        raise ArgumentInvalid(_FORM) from None
    return found
