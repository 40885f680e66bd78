"""The keys of trusted issuers: read at the start, read again now and then, kept while an issuer is away (I54).

Keys that came over HTTP are kept in the data folder too, so that a server that starts while the issuer is away still
takes the tokens in hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp

from duobus.auth.bearer_tokens import KEYS_BYTES_MAX, Issuer, PublicKey, read_keys
from duobus.errors import ConfigurationError
from duobus.model.options import TrustedIssuer
from duobus.server.access.token_file import is_url
from duobus.telemetry.logs import Log

#: How often keys are read again; issuers announce new ones a day ahead.
REFRESH_S: Final = 300.0
#: A token with an unknown key has them read at once, but not more often than this: anybody can send such tokens.
REST_S: Final = 5.0
#: How long an issuer may take to answer.
ANSWER_S: Final = 5.0


class IssuerKeys:
    """Reads the keys of all trusted issuers.

    Attributes:
        issuers: The issuers, with the keys that are known.
        changed: Called when an issuer has lost a key: what it has signed is not good any more.
    """

    def __init__(self, options: tuple[TrustedIssuer, ...], folder: Path | None, log: Log) -> None:
        """``folder``: where keys that came over HTTP are kept; None keeps them in memory only."""
        self.changed: Callable[[], None] = lambda: None
        self._folder = folder
        self._log = log
        self._wanted = [asyncio.Event() for _ in options]
        self._options = options
        self._tasks: list[asyncio.Task[None]] = []
        self.issuers = [
            Issuer(
                one.issuer,
                audiences=one.audiences,
                namespaces=[name.lower() for name in one.namespaces],
                missed=wanted.set,
            )
            for one, wanted in zip(options, self._wanted, strict=True)
        ]

    async def start(self) -> None:
        """Read all keys, and begin to look after them.

        Raises:
            ConfigurationError: A file of keys is missing or wrong. An address that does not answer is only logged.
        """
        loop = asyncio.get_running_loop()
        for index, option in enumerate(self._options):
            if is_url(option.keys):
                await loop.run_in_executor(None, self._recall, index)
                await self.refresh(index)
            else:
                await loop.run_in_executor(None, self._read_file, index)
            self._tasks.append(loop.create_task(self._look_after(index), name=f"keys-{index}"))

    async def stop(self) -> None:
        """Stop looking after them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def refresh(self, index: int) -> bool:
        """Read the keys of one issuer again; when that fails, those that are known stay. Tells whether it worked."""
        option = self._options[index]
        before = self.issuers[index].keys
        try:
            if is_url(option.keys):
                data = await _fetched(option.keys)
                self.issuers[index].keys = read_keys(data)
                await asyncio.get_running_loop().run_in_executor(None, self._keep, index, data)
            else:
                await asyncio.get_running_loop().run_in_executor(None, self._read_file, index)
        except (ConfigurationError, aiohttp.ClientError, OSError, TimeoutError) as error:
            known = len(self.issuers[index].keys)
            self._log.warning("keys not read", issuer=option.issuer, known=known, error=str(error) or repr(error))
            return False
        finally:
            now = self.issuers[index].keys
            if any(key not in now for key in before):
                self.changed()
        return True

    async def _look_after(self, index: int) -> None:
        while True:
            await asyncio.sleep(REST_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted[index].wait(), REFRESH_S)
            self._wanted[index].clear()
            await self.refresh(index)

    def _read_file(self, index: int) -> None:
        self.issuers[index].keys = read_key_file(Path(self._options[index].keys))

    def _path(self, index: int) -> Path | None:
        option = self._options[index]
        digest = hashlib.sha256(f"{option.issuer}\n{option.keys}".encode()).hexdigest()
        return None if self._folder is None else self._folder / f"keys-{digest[:32]}.json"

    def _recall(self, index: int) -> None:
        path = self._path(index)
        # Nothing kept yet, or not whole: the issuer is asked anyway.
        with contextlib.suppress(OSError, ConfigurationError):
            if path is not None:
                self.issuers[index].keys = read_keys(path.read_bytes())

    def _keep(self, index: int, data: bytes) -> None:
        path = self._path(index)
        if path is not None:
            write_private(path, data)


def read_key_file(path: Path) -> tuple[PublicKey, ...]:
    """Read the keys of an issuer that are in a file.

    Raises:
        ConfigurationError: The file is missing or wrong.
    """
    try:
        with path.open("rb") as file:
            return read_keys(file.read(KEYS_BYTES_MAX + 1))
    except (OSError, ConfigurationError) as error:
        raise ConfigurationError(f"The keys {path} of an issuer cannot be read: {error}") from error


async def _fetched(url: str) -> bytes:
    limit = aiohttp.ClientTimeout(total=ANSWER_S)
    # No redirects and no proxies: the address was checked to be this machine's.
    async with (
        aiohttp.ClientSession(timeout=limit, trust_env=False) as session,
        session.get(url, allow_redirects=False) as response,
    ):
        if response.status != 200:
            raise ConfigurationError(f"The address of the keys answers {response.status}.")
        found = bytearray()
        async for part in response.content.iter_chunked(65_536):
            found += part
            if len(found) > KEYS_BYTES_MAX:
                raise ConfigurationError(f"The address of the keys answers more than {KEYS_BYTES_MAX} bytes.")
        return bytes(found)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, as a whole; raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    opener = partial(os.open, mode=0o600)
    with open(temporary, "xb", opener=opener) as file:
        file.write(data)
    temporary.replace(path)
