# Generated from duobus/relay/aio/tokens.py by `make twins`; change that one.
"""The tokens of one endpoint: signed with its key, or given by a credential; each is used until it is nearly over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from duobus.clock import Clock
from duobus.concurrency import sync as tasks
from duobus.relay.endpoint import RelayEndpoint
from duobus.relay.errors import TokenFailed

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

#: Seconds that a signed token lasts.
LIFE_S: Final = 3600
#: The part of its life after which a token is replaced.
RENEW_AFTER: Final = 0.8
#: Some decades, for tokens that this client cannot replace.
_NEVER_MS: Final = 1 << 40
#: A credential has this long for a token.
CREDENTIAL_S: Final = 30.0
#: What a credential is asked for; Azure's relays take this scope.
SCOPE: Final = "https://relay.azure.net/.default"


class Token(NamedTuple):
    """A token.

    Attributes:
        text: As it stands in the header; empty for a sender that shows none.
        renew_ms: Wall clock time from which on a new token is wanted.
        expires_ms: Wall clock time at which the token ends.
    """

    text: str
    renew_ms: int
    expires_ms: int


class TokenSource:
    """Gives the tokens of one endpoint.

    Args:
        endpoint: The endpoint.
        credential: A credential such as those of azure-identity; None to sign with the key of the endpoint.
        scope: What the credential is asked for.
        life_s: Seconds that a signed token lasts.
        clock: Time.
    """

    def __init__(
        self,
        endpoint: RelayEndpoint,
        credential: TokenCredential | None = None,
        *,
        scope: str = SCOPE,
        life_s: int = LIFE_S,
        clock: Clock | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._credential = credential
        self._scope = scope
        self._life_s = life_s
        self._clock = clock if clock is not None else Clock()
        self._token: Token | None = None

    def token(self, *, is_fresh: bool = False, limit_s: float = CREDENTIAL_S) -> Token:
        """Return a token.

        Args:
            is_fresh: Whether the present token was refused, so that another one is wanted.
            limit_s: Longest time that the credential may take.

        Raises:
            TokenFailed: The credential gave no token, and there is none that still lasts.
        """
        now_ms = self._clock.now_ms()
        known = self._token
        if known is not None and not is_fresh and now_ms < known.renew_ms:
            return known
        try:
            self._token = self._made(now_ms, limit_s)
        except TokenFailed:
            if known is None or is_fresh or known.expires_ms <= now_ms:
                raise
            return known
        return self._token

    def headers(self, *, is_fresh: bool = False, limit_s: float = CREDENTIAL_S) -> dict[str, str]:
        """Return the headers that show a token; none where the endpoint has no key and no credential."""
        token = self.token(is_fresh=is_fresh, limit_s=limit_s)
        return {"ServiceBusAuthorization": token.text} if token.text else {}

    def _made(self, now_ms: int, limit_s: float) -> Token:
        endpoint = self._endpoint
        if self._credential is not None:
            credential, scope = self._credential, self._scope
            try:
                given = tasks.within(min(limit_s, CREDENTIAL_S), lambda: credential.get_token(scope))
            except Exception as error:
                raise TokenFailed(f"the credential gave no token: {error!r}", endpoint.name) from error
            expires_ms = int(given.expires_on * 1000)
            return Token(f"Bearer {given.token}", now_ms + int((expires_ms - now_ms) * RENEW_AFTER), expires_ms)
        if endpoint.signature or not endpoint.key:
            # Nobody here can make another one: it lasts for as long as the relay takes it.
            return Token(endpoint.signature, now_ms + (_NEVER_MS), now_ms + (_NEVER_MS))
        expires_s = now_ms // 1000 + self._life_s
        renew_ms = now_ms + int(self._life_s * 1000 * RENEW_AFTER)
        return Token(endpoint.token(expires_s), renew_ms, expires_s * 1000)
