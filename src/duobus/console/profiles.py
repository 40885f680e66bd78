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
from duobus.file_sync import sync_file, sync_folder

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


class NamespaceEntry(NamedTuple):
    """A namespace that the console knows.

    Attributes:
        name: How people call the namespace.
        address: With a key or without.
        is_saved: Whether it is in the file of profiles.
    """

    name: str
    address: NamespaceAddress
    is_saved: bool


class NamespaceList:
    """The namespaces that a console knows: that of its command line, then the saved ones.

    Args:
        target: Of the command line.
        profiles: The saved ones, where there is a file for them.
    """

    def __init__(self, target: NamespaceAddress | None, profiles: Profiles | None) -> None:
        self._target = target
        self._profiles = profiles

    @property
    def has_file(self) -> bool:
        """Whether there is a file for profiles."""
        return self._profiles is not None

    def read(self) -> list[NamespaceEntry]:
        """All of them.

        Raises:
            ConfigurationError: The file of profiles cannot be read.
        """
        found = [] if self._target is None else [NamespaceEntry(self._target.netloc, self._target, is_saved=False)]
        if self._profiles is not None:
            found += [NamespaceEntry(one.name, one.address, is_saved=True) for one in self._profiles.read()]
        return found

    def add(self, profile: Profile) -> None:
        """Save a namespace.

        Raises:
            ArgumentInvalid, ConfigurationError: As of ``Profiles.add``, or there is no file.
        """
        if self._profiles is None:
            raise ConfigurationError("The console has no file for profiles: start it with --profiles FILE.")
        if self._target is not None and profile.name == self._target.netloc:
            raise ArgumentInvalid(f"{profile.name} is the namespace of the command line. Choose another name.")
        self._profiles.add(profile)

    def remove(self, name: str) -> None:
        """Forget a saved namespace.

        Raises:
            ConfigurationError: The file cannot be read or written.
        """
        if self._profiles is not None:
            self._profiles.remove(name)


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
                sync_file(descriptor)
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
