"""The token that ``/metrics`` asks for, if the operator wants one: that of a file, as Prometheus has it."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Final

from duobus.errors import ConfigurationError

#: Characters of a token; whoever can try as often as it likes must not guess one.
LENGTH_MIN: Final = 16
LENGTH_MAX: Final = 4096

_SCHEME: Final = "bearer "


class MetricsToken:
    """Checks the header ``Authorization`` of a request for the metrics.

    Args:
        path: The file; its text without white space around it is the token.

    Raises:
        ConfigurationError: It cannot be read, or holds no token.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = self._read()

    def reload(self) -> None:
        """Read the file again; ConfigurationError leaves the token as it was."""
        self._token = self._read()

    def accepts(self, authorization: str) -> bool:
        """Whether the text of the header is ``Bearer`` and the token."""
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            return False
        given = authorization[len(_SCHEME) :].strip()
        return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self._token)

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                token = file.read(LENGTH_MAX + 2).strip()
        except OSError as error:
            raise ConfigurationError(
                f"The file {self._path} of --metrics-token-file cannot be read: {error.strerror}."
            ) from error
        if not LENGTH_MIN <= len(token) <= LENGTH_MAX or not token.isascii() or len(token.split()) != 1:
            raise ConfigurationError(
                f"The file {self._path} of --metrics-token-file has to hold one token of {LENGTH_MIN} to {LENGTH_MAX} "
                "ASCII characters without white space. Make one: openssl rand -base64 32."
            )
        return token
