"""The file of ``--bearer-tokens``: who is trusted, and who may log in at the own token endpoint."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from duobus.errors import ConfigurationError
from duobus.model.options import TokenOptions

#: Longest file: 256 clients and 32 issuers are about 100 KiB.
TOKEN_FILE_BYTES_MAX: Final = 1_048_576

_ROLES: Final = ("owner", "sender", "receiver")


def read_token_file(path: Path) -> TokenOptions:
    """Read and check a file.

    Raises:
        ConfigurationError: It cannot be read, or holds a wrong value; the text names the place and quotes no secret.
    """
    try:
        with path.open("rb") as file:
            data = file.read(TOKEN_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"The file {path} of --bearer-tokens cannot be read: {error.strerror}.") from error
    if len(data) > TOKEN_FILE_BYTES_MAX:
        raise ConfigurationError(f"The file {path} of --bearer-tokens is longer than {TOKEN_FILE_BYTES_MAX} bytes.")
    try:
        options = msgspec.json.decode(data, type=TokenOptions)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        # The texts name types, bounds and the JSON path, never a value.
        raise ConfigurationError(f"{path}: {error}.") from None
    try:
        _check(options)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    return options


def is_url(keys: str) -> bool:
    """Whether ``Keys`` is an address and not the path of a file."""
    return "://" in keys


def _check(options: TokenOptions) -> None:
    names = [issuer.issuer for issuer in options.issuers]
    if len(set(names)) < len(names):
        raise ConfigurationError("$.Issuers: an issuer is there twice. Give each once.")
    for index, issuer in enumerate(options.issuers):
        if is_url(issuer.keys) and not _is_local(issuer.keys):
            raise ConfigurationError(
                f"$.Issuers[{index}].Keys: only http addresses of this machine are read, such as "
                "http://127.0.0.1:8080/keys. Give the path of a file with the issuer's JWKS instead."
            )
    if options.endpoint is None:
        if not options.issuers:
            raise ConfigurationError("$: neither Issuers nor Endpoint is there. Give one of them.")
        return
    ids = [client.client_id for client in options.endpoint.clients]
    if len(set(ids)) < len(ids):
        raise ConfigurationError("$.Endpoint.Clients: a ClientId is there twice. Give each once.")
    for index, client in enumerate(options.endpoint.clients):
        if any(role.lower() not in _ROLES for role in client.roles):
            raise ConfigurationError(f"$.Endpoint.Clients[{index}].Roles: use Owner, Sender and Receiver.")


def _is_local(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        # Reading it is the check of the port.
        parts.port  # noqa: B018
        return parts.scheme == "http" and (host == "localhost" or ip_address(host).is_loopback)
    except ValueError:
        return False
