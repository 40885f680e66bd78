"""SASL: who connects, as far as the login says it (contract 1.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duobus.amqp import SaslInitReceived
from duobus.auth.authorizer import NamespaceRules
from duobus.errors import Unauthorized

if TYPE_CHECKING:
    from duobus.gateway.amqp.peer import Peer


def log_in(peer: Peer, event: SaslInitReceived) -> tuple[bool, NamespaceRules | None]:
    """Whether a client may go on, and the namespace that its login is for; None when tokens are to follow."""
    if event.mechanism != "PLAIN":
        return event.mechanism in ("ANONYMOUS", "MSSBCBS"), None
    parts = (event.response or b"").split(b"\x00")
    if len(parts) != 3:
        return False, None
    authorizer = peer.server.authorizer
    rules = authorizer.namespace_of(event.hostname)
    try:
        name, key = parts[1].decode(), parts[2].decode()
        peer.grants.set_login(authorizer.authorize_plain(name, key, rules))
    except (Unauthorized, UnicodeDecodeError) as error:
        peer.server.refusals.info("login refused", mechanism="PLAIN", reason=type(error).__name__)
        return False, None
    listener = peer.router.listener
    if listener is not None:
        listener.logged_in(name, key)
    return True, rules
