"""Saved namespaces: a file with names and connection strings, which only its owner can read.

The file holds keys as they are. Whoever can read the file has them, which is why the file is made with the mode 0600
and is not read with another one.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, Final, NamedTuple

from duobus.console.namespace.address import NamespaceAddress
from duobus.errors import ArgumentInvalid, ConfigurationError
from duobus.file_sync import sync_folder

_MODE: Final = 0o600
_PROFILES_MAX: Final = 200
_NAME_MAX: Final = 80


class Profile(NamedTuple):
    """A saved namespace.

    Attributes:
        name: How people call it.
        connection_string: With the key.
        management_url: Base URL of the management API, where the connection string does not lead there.
    """

    name: str
    connection_string: str
    management_url: str | None = None

    @property
    def address(self) -> NamespaceAddress:
        """Where the namespace is."""
        return NamespaceAddress(self.connection_string, self.management_url)


class Profiles:
    """The profiles of one file; the file is read anew each time, because a person may edit it.

    Args:
        path: The file; it is made when the first profile is added.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[Profile]:
        """All profiles, in the order of the file; none when there is no file.

        Raises:
            ConfigurationError: The file is no list of profiles, or others can read it.
        """
        try:
            with self._path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                if mode & 0o077:
                    raise ConfigurationError(
                        f"{self._path} holds keys, and others can read it (mode {mode:04o}): chmod 600 {self._path}"
                    )
                text = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigurationError(f"{self._path} cannot be read: {error.strerror}") from None
        try:
            return [_profile(entry) for entry in json.loads(text)["profiles"]]
        except (ValueError, KeyError, TypeError, ArgumentInvalid):
            raise ConfigurationError(
                f'{self._path} is no file of profiles: {{"profiles": [{{"name": …, "connectionString": …}}]}}'
            ) from None

    def find(self, name: str) -> Profile:
        """The profile of this name.

        Raises:
            ArgumentInvalid: There is none.
            ConfigurationError: As of ``read``.
        """
        found = next((profile for profile in self.read() if profile.name == name), None)
        if found is None:
            raise ArgumentInvalid(f"There is no profile {name!r}.")
        return found

    def add(self, profile: Profile) -> None:
        """Save a profile in place of the one of the same name.

        Raises:
            ArgumentInvalid: The name is empty or long, there are too many profiles, or the connection string is none.
            ConfigurationError: The file cannot be read or written.
        """
        if not profile.name.strip() or len(profile.name) > _NAME_MAX or not profile.name.isprintable():
            raise ArgumentInvalid(f"The name of a profile has 1 to {_NAME_MAX} characters.")
        _ = profile.address
        kept = [other for other in self.read() if other.name != profile.name]
        if len(kept) >= _PROFILES_MAX:
            raise ArgumentInvalid(f"There are {_PROFILES_MAX} profiles already: remove one first.")
        self._write([*kept, profile])

    def remove(self, name: str) -> None:
        """Remove a profile; one that is gone is no error.

        Raises:
            ConfigurationError: The file cannot be read or written.
        """
        self._write([profile for profile in self.read() if profile.name != name])

    def _write(self, profiles: list[Profile]) -> None:
        text = json.dumps({"profiles": [_entry(profile) for profile in profiles]}, indent=2, ensure_ascii=False) + "\n"
        draft = self._path.with_name(f".{self._path.name}.new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, _MODE)
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, _MODE)
                file.write(text.encode())
                file.flush()
                os.fsync(descriptor)
            draft.replace(self._path)
            sync_folder(self._path.parent)
        except OSError as error:
            raise ConfigurationError(f"{self._path} cannot be written: {error.strerror}") from None


def _profile(entry: Any) -> Profile:
    url = entry.get("managementUrl")
    found = Profile(str(entry["name"]), str(entry["connectionString"]), None if url is None else str(url))
    _ = found.address
    return found


def _entry(profile: Profile) -> dict[str, str]:
    found = {"name": profile.name, "connectionString": profile.connection_string}
    if profile.management_url is not None:
        found["managementUrl"] = profile.management_url
    return found
