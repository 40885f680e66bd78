"""Bearer tokens of one server: the trusted issuers, the own one, and the endpoint where clients log in."""

from __future__ import annotations

from pathlib import Path

from duobus.auth.bearer_tokens import BearerTokens
from duobus.clock import Clock, Entropy
from duobus.errors import ConfigurationError
from duobus.gateway.rest.local_issuer import LocalIssuer, new_signing_key
from duobus.gateway.rest.token_endpoint import TokenEndpoint
from duobus.model.options import TokenOptions
from duobus.server.access.issuer_keys import IssuerKeys, write_private
from duobus.telemetry.logs import Log


class Tokens:
    """What a server knows of bearer tokens.

    Attributes:
        keys: Looks after the keys of trusted issuers.
        verifier: Verifies tokens.
        endpoint: Where clients log in, or None.
    """

    def __init__(self, options: TokenOptions, data: Path | None, clock: Clock, entropy: Entropy) -> None:
        """``data``: the data folder, or None when everything is kept in memory; then tokens end with the server."""
        folder = None if data is None else data / "tokens"
        self.keys = IssuerKeys(options.issuers, folder, Log("tokens"))
        issuers = list(self.keys.issuers)
        self.endpoint: TokenEndpoint | None = None
        if options.endpoint is not None:
            own = LocalIssuer(options.endpoint, _signing_key(folder), clock, entropy)
            # Trusted ones first: their names are exact.
            issuers.append(own.issuer)
            self.endpoint = TokenEndpoint(own, Log("tokens"))
        self.verifier = BearerTokens(issuers)

    async def start(self) -> None:
        """Read the keys; ConfigurationError when a file of keys is wrong."""
        await self.keys.start()

    async def stop(self) -> None:
        """Stop looking after the keys."""
        await self.keys.stop()


def _signing_key(folder: Path | None) -> bytes:
    """The endpoint's key, made at the first start; tokens outlive a restart."""
    if folder is None:
        return new_signing_key()
    path = folder / "signing-key.pem"
    try:
        if path.exists():
            return path.read_bytes()
        key = new_signing_key()
        write_private(path, key)
    except OSError as error:
        raise ConfigurationError(f"The key {path} of the token endpoint cannot be kept: {error.strerror}.") from error
    return key
