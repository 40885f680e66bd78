"""Archives of tar that this project or its registries made, unpacked by every Python that duobus runs on."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpack an archive into a folder, without owners and without anything outside of the folder.

    Before 3.11.4, the version of Debian 12 among them, Python has no such filter; there the archive is trusted.
    """
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
    else:
        archive.extractall(folder)
