"""What an operator can choose about bearer tokens: issuers that are trusted, and clients of the own token endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from duobus.errors import ArgumentInvalid
from duobus.model.tiers import ALL, Tier

#: Most issuers that are trusted, and most clients of the own endpoint: each is looked through for every token.
ISSUERS_MAX: Final = 32
CLIENTS_MAX: Final = 256
#: Shortest secret of a client, in characters: it can be guessed at over the network.
SECRET_LENGTH_MIN: Final = 16
#: Life of a token of the own endpoint, unless it is set: as long as the cloud's token service gave (IN4).
LIFETIME_S: Final = 10_800
#: Longest life that can be set: a token cannot be called back.
LIFETIME_S_MAX: Final = 86_400

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]


class TrustedIssuer(msgspec.Struct, frozen=True, kw_only=True, rename="pascal", forbid_unknown_fields=True):
    """An issuer whose tokens are taken.

    Attributes:
        issuer: What the claim ``iss`` has to be, to the letter.
        keys: Its JWKS: path of a file, or ``http://`` address on this machine.
        audiences: What ``aud`` may be beside the cloud's and the namespace's own.
        namespaces: Names of the namespaces that its tokens are good for; none is all.
    """

    issuer: _Text
    keys: _Text
    audiences: tuple[_Text, ...] = ()
    namespaces: tuple[_Text, ...] = ()


class TokenClient(msgspec.Struct, frozen=True, kw_only=True, rename="pascal", forbid_unknown_fields=True):
    """A program that may log in at the own token endpoint.

    Attributes:
        client_id: Its name.
        client_secret: Its password.
        roles: ``Owner``, ``Sender``, ``Receiver``.
    """

    client_id: _Text
    client_secret: Annotated[str, msgspec.Meta(min_length=SECRET_LENGTH_MIN, max_length=2048)]
    roles: Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1)]

    def __repr__(self) -> str:
        # Settings are printed when something fails; the secret must not be (I66).
        return f"TokenClient({self.client_id!r}, '***', {self.roles!r})"


class TokenEndpointOptions(msgspec.Struct, frozen=True, kw_only=True, rename="pascal", forbid_unknown_fields=True):
    """The own token endpoint.

    Attributes:
        tenant: First segment of its addresses.
        lifetime_seconds: How long its tokens live.
        clients: Who may log in.
    """

    clients: Annotated[tuple[TokenClient, ...], msgspec.Meta(min_length=1, max_length=CLIENTS_MAX)]
    tenant: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,63}$")] = "duobus"
    lifetime_seconds: Annotated[int, msgspec.Meta(ge=1, le=LIFETIME_S_MAX)] = LIFETIME_S


class TokenOptions(msgspec.Struct, frozen=True, kw_only=True, rename="pascal", forbid_unknown_fields=True):
    """Everything about bearer tokens.

    Attributes:
        issuers: Who is trusted.
        endpoint: The own token endpoint, or None.
    """

    issuers: Annotated[tuple[TrustedIssuer, ...], msgspec.Meta(max_length=ISSUERS_MAX)] = ()
    endpoint: TokenEndpointOptions | None = None


# What an operator can choose about the HTTP interface.

#: From this version on clients know partitioned entities.
_PARTITIONING = "2013-10"


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Choices.

    Attributes:
        tier: Whose defaults and limits hold for descriptions.
        strict_api_version: Demand ``api-version`` 2013-10 or later for partitioned entities (PE7).
        operations: Answer what Azure does not have: ``/$duobus`` and the dead-letter service.
    """

    tier: Tier = ALL
    strict_api_version: bool = False
    operations: bool = True

    def demand_version(self, query: Mapping[str, str], is_partitioned: bool) -> None:
        """Raise ArgumentInvalid when the request's api-version is too old for what it is about."""
        if self.strict_api_version and is_partitioned and query.get("api-version", "") < _PARTITIONING:
            raise ArgumentInvalid(f"Partitioned entities need the parameter api-version={_PARTITIONING} or later.")
