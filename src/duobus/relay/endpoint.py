"""One endpoint of a relay: where it is, its addresses, and the key that signs its tokens. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from duobus.model.access_rules import sign_token
from duobus.model.relay.addresses import CONNECT, LISTEN, address, encoded_path

_SECURE: Final = frozenset({"sb", "https", "wss", "amqps"})
_PLAIN: Final = frozenset({"http", "ws", "amqp"})
_FORM: Final = "Endpoint=sb://HOST/;SharedAccessKeyName=NAME;SharedAccessKey=KEY;EntityPath=PATH"


@dataclass(frozen=True, slots=True)
class RelayEndpoint:
    """A hybrid connection of a namespace.

    Attributes:
        host: Host name of the namespace, with the port if that is not the usual one.
        path: Path of the hybrid connection.
        key_name: Name of the access rule; empty when a credential or nothing at all is shown instead.
        key: Key of the access rule.
        signature: A token made by somebody else, in place of a key.
        is_secure: Whether TLS is spoken; only the emulator's connection string and ``http://`` switch TLS off.
    """

    host: str
    path: str
    key_name: str = ""
    key: str = field(default="", repr=False)
    signature: str = field(default="", repr=False)
    is_secure: bool = True

    @classmethod
    def from_connection_string(cls, text: str, path: str | None = None) -> RelayEndpoint:
        """Return the endpoint that a connection string names.

        Args:
            text: A connection string, with or without a key.
            path: Path of the hybrid connection; by default the member ``EntityPath`` of the connection string.

        Raises:
            ValueError: A member is missing or wrong; the error text holds no key.
        """
        members: dict[str, str] = {}
        for part in text.strip().split(";"):
            name, sign, value = part.partition("=")
            if part.strip():
                if not sign:
                    raise ValueError(f"A connection string of a relay has the form {_FORM}.")
                members[name.strip().lower()] = value.strip()
        where = urlsplit(members.get("endpoint", ""))
        scheme = where.scheme.lower()
        if scheme not in _SECURE | _PLAIN or not where.hostname:
            raise ValueError(f"The connection string has no member Endpoint=sb://HOST/. Its form is {_FORM}.")
        path = (path or members.get("entitypath", "")).strip("/")
        if not path:
            raise ValueError("No relay is named: add ;EntityPath=PATH to the connection string, or give the path.")
        name, key = members.get("sharedaccesskeyname", ""), members.get("sharedaccesskey", "")
        if bool(name) != bool(key):
            raise ValueError("SharedAccessKeyName and SharedAccessKey go together; one of them is missing.")
        is_emulator = members.get("usedevelopmentemulator", "").lower() == "true"
        return cls(
            where.netloc.rpartition("@")[2],
            path,
            name,
            key,
            members.get("sharedaccesssignature", ""),
            scheme in _SECURE and not is_emulator,
        )

    @property
    def name(self) -> str:
        """Host and path, for events, metrics and error texts."""
        return f"{self.host}/{self.path}"

    @property
    def audience(self) -> str:
        """The resource for which tokens are signed."""
        return f"http://{self.host}/{self.path}"

    def token(self, expires_s: int) -> str:
        """Return a shared access signature that is good until ``expires_s``, in seconds since 1970."""
        return sign_token(self.audience, self.key_name, self.key, expires_s)

    def listen_address(self, identifier: str) -> str:
        """The address of the control channel; the identifier is in the relay's logs."""
        return address(self._base("ws"), encoded_path(self.path), LISTEN, id=identifier)

    def connect_address(self, identifier: str, suffix: str = "", query: str = "") -> str:
        """The address at which a sender opens a WebSocket.

        Args:
            identifier: Is in the relay's logs.
            suffix: Path below that of the hybrid connection, as the listener is to see the path.
            query: Query for the listener, as the query stands in an address.
        """
        return address(self._base("ws"), encoded_path(self._below(suffix)), CONNECT, id=identifier, query=query)

    def request_address(self, suffix: str = "", query: str = "") -> str:
        """The address to which a sender sends an HTTP request; the arguments are those of ``connect_address``."""
        path = encoded_path(self._below(suffix))
        return f"{self._base('http')}/{path}{'?' if query else ''}{query}"

    def suffix_of(self, target: str) -> tuple[str, str]:
        """Take the target of a request apart: the path below that of the hybrid connection, and the query.

        Two endpoints of one service have different paths, so an application must not see them.
        """
        path, _, query = target.partition("?")
        own = "/" + encoded_path(self.path)
        if path.lower() == own.lower() or path.lower().startswith(own.lower() + "/"):
            path = path[len(own) :]
        return path or "/", query

    def _base(self, scheme: str) -> str:
        return f"{scheme}{'s' if self.is_secure else ''}://{self.host}"

    def _below(self, suffix: str) -> str:
        return f"{self.path}/{suffix.lstrip('/')}" if suffix.strip("/") else self.path
