"""Archives of tar that this project or its registries made, unpacked by every Python that duobus runs on."""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpack an archive into a folder, without owners and without anything outside of the folder.

    Before 3.11.4, the version of Debian 12 among them, Python has no such filter; there the archive is trusted.
    """
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
    else:
        archive.extractall(folder)


def unpack_commit(root: Path, commit: str, folder: Path, *paths: str) -> None:
    """Put what a commit of a repository has at some paths, or all that it has, into a folder.

    Raises:
        FileNotFoundError: There is no Git.
        subprocess.CalledProcessError: Git knows no such commit, or the commit has no such path.
    """
    done = subprocess.run(["git", "-C", str(root), "archive", commit, *paths], capture_output=True, check=True)
    with tarfile.open(fileobj=BytesIO(done.stdout)) as tar:
        unpack(tar, folder)
