"""LastingCredential: a token is used until it ends, whether or not its issuer can give another one (IN4, I54)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from duobus.clock import Clock
from duobus.ha.options import SCOPES_MAX

if TYPE_CHECKING:
    from azure.core.credentials import AccessToken
    from azure.core.credentials_async import AsyncTokenCredential

#: A new token is asked for when the old one has less than this left, in seconds.
AHEAD_S: Final = 600
#: After an issuer did not answer, it is left alone for so long.
RETRY_S: Final = 30

_log = logging.getLogger("duobus.ha")


class LastingCredential:
    """A credential that outlives outages of its issuer, for as long as its token lasts.

    The SDK asks for a token at every new connection. When the issuer is away, this credential returns the token that it
    has while that token is valid, so that a client whose connection broke can connect again.

    Args:
        credential: The credential of the issuer. It is asked for the next token some time before the present one ends.
        clock: Time.
    """

    def __init__(self, credential: AsyncTokenCredential, *, clock: Clock | None = None) -> None:
        self._credential = credential
        self._clock = clock if clock is not None else Clock()
        self._tokens: dict[tuple[Any, ...], AccessToken] = {}
        self._next_try_ms = 0

    async def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken:
        """Return a valid token.

        Args:
            *scopes: The scopes that the SDK gives.
            **kwargs: Further arguments that the SDK gives.

        Raises:
            Exception: The error of the credential, if there is no valid token.
        """
        key = (scopes, tuple(sorted((name, str(value)) for name, value in kwargs.items())))
        known = self._tokens.get(key)
        now_ms = self._clock.now_ms()
        left_s = -1.0 if known is None else known.expires_on - now_ms / 1000
        if known is not None and (left_s > AHEAD_S or (left_s > 0 and now_ms < self._next_try_ms)):
            return known
        try:
            token = await self._credential.get_token(*scopes, **kwargs)
        except Exception as error:
            if known is None or left_s <= 0:
                raise
            self._next_try_ms = now_ms + RETRY_S * 1000
            _log.warning("no new token: %s; the old one lasts for %d s", error, left_s)
            return known
        self._tokens.pop(key, None)
        if len(self._tokens) >= SCOPES_MAX:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[key] = token
        return token

    async def __aenter__(self) -> LastingCredential:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the credential within."""
        close = getattr(self._credential, "close", None)
        if close is not None:
            await close()
