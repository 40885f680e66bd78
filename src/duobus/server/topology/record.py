"""Which entities and rules the configuration file has made, kept in the data folder.

The record tells what the file no longer has from what clients have created. Without a record nothing is known, and so
nothing is deleted.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from duobus.errors import ConfigurationError
from duobus.file_sync import sync_file, sync_folder

#: In the data folder.
FILE_NAME: Final = "config-entities.json"
FORMAT: Final = 1


class OwnedEntity(msgspec.Struct, frozen=True):
    """An entity that the file has, or had.

    Attributes:
        entity_id: Its id in the catalog; ids are never used again.
        namespace: Its namespace.
        path: Its path, for people who read the record.
        rules: Names of the rules that the file has given it: of a subscription its filters, of others access rules.
    """

    entity_id: int
    namespace: str
    path: str
    rules: tuple[str, ...] = ()


class _Document(msgspec.Struct, frozen=True):
    format: int
    catalog: int
    entities: tuple[OwnedEntity, ...]


def read_record(folder: Path | None, catalog: int) -> dict[int, OwnedEntity]:
    """Id to entity, as the last start has written it.

    Args:
        folder: The data folder, or None where nothing is kept.
        catalog: Identity of the catalog; a record that belongs to another one says nothing about this one.

    Raises:
        ConfigurationError: The record cannot be read, or is damaged.
    """
    if folder is None:
        return {}
    path = folder / FILE_NAME
    try:
        document = msgspec.json.decode(path.read_bytes(), type=_Document)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path} tells which entities the configuration has made, and cannot be read ({error}). Delete it: then the"
            " next start deletes no entity, and writes it anew."
        ) from error
    if document.format != FORMAT or document.catalog != catalog:
        return {}
    return {entity.entity_id: entity for entity in document.entities}


def write_record(folder: Path, catalog: int, entities: dict[int, OwnedEntity]) -> None:
    """Replace the record as a whole; on return it is durable.

    Raises:
        ConfigurationError: It cannot be written.
    """
    path = folder / FILE_NAME
    document = _Document(FORMAT, catalog, tuple(entities[number] for number in sorted(entities)))
    data = msgspec.json.format(msgspec.json.encode(document)) + b"\n"
    temporary = path.with_suffix(".tmp")
    try:
        if path.exists() and path.read_bytes() == data:
            return
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            sync_file(file.fileno())
        temporary.replace(path)
        sync_folder(folder)
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be written: {error.strerror}. Make room on its disk, or let the server write there."
        ) from error
