"""Where a request was sent to: what absolute addresses in answers are made of, and which ones in requests are ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import unquote, urlsplit

from duobus.errors import ArgumentInvalid
from duobus.model.address import check_entity_name, decode_percent

_SCHEMES: Final = frozenset({"sb", "amqp", "amqps", "http", "https"})


class RequestOrigin:
    """The authority of one request.

    Attributes:
        scheme: ``http`` or ``https``.
        host: The Host header: name and perhaps port.
        namespace: Name of the namespace that it stands for.
    """

    __slots__ = ("_is_own", "host", "namespace", "scheme")

    def __init__(self, scheme: str, host: str, namespace: str, is_own: Callable[[str], bool]) -> None:
        """``is_own``: whether a host name (without port) belongs to the same namespace."""
        self.scheme = scheme
        self.host = host
        self.namespace = namespace
        self._is_own = is_own

    def url(self, path: str) -> str:
        """Return the absolute URL of a path. Not percent-encoded: the JavaScript SDK shows it as it is."""
        return f"{self.scheme}://{self.host}/{path}"

    def told(self, target: str | None, sent: str | None) -> str | None:
        """Return how a forwarding target is told (Azure: autoforwarding): as a client sent it, or as an address.

        An address it is for what came from a configuration file, or was changed since by other means.
        """
        if target is None:
            return None
        is_same = sent is not None and f"/{unquote(sent)}".rstrip("/").lower().endswith(f"/{target.lower()}")
        return sent if is_same else f"sb://{self.host}/{target}"

    def target(self, name: str, text: str) -> str:
        """Return the entity that a ``ForwardTo`` means: a bare name, or an absolute address of this namespace.

        Raises:
            ArgumentInvalid: It names another host, or is no name of an entity.
        """
        scheme, separator, _ = text.partition("://")
        if separator:
            try:
                parts = urlsplit(text)
                host, path = parts.hostname or "", parts.path
            except ValueError:
                raise ArgumentInvalid(f"{name} is no address of an entity. Give the entity's name.") from None
            if scheme.lower() not in _SCHEMES or not self._is_own(host):
                raise ArgumentInvalid(
                    f"{name} points to another namespace ({host[:128]!r}). Use one of this namespace."
                )
        else:
            path = text
        return check_entity_name(decode_percent(path, name).strip("/"))
