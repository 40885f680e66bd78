"""What publishers of SDKs have on the registries beside their SDKs, and a network in which it finds the usual ports.

The source package of the SDK for Python holds samples and tests. They name no port and no certificate, so they get a
network of their own: namespaces of Linux with nothing but a loopback, and a hosts file where one is asked for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

from kits.programs import built, do_without
from tools.archives import unpack

SDK = "azure-servicebus"
IDENTITY = "azure-identity==1.27.0"
INSTALL_LIMIT_S = 240.0

#: What a machine may say of proxies and authorities of its own.
_LEFT_OUT = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_DIR"}


def obtained(required: str) -> Path:
    """A folder with ``samples``, ``packages`` and ``source`` of the SDK for Python; made once per version of it.

    Skips when it cannot be had, or fails where the variable ``required`` is set.
    """
    return built(f"samples-{version(SDK)}", "samples", lambda folder: _obtain_into(folder, required))


def _obtain_into(folder: Path, required: str) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    source = [*pip, "download", "--no-deps", "--no-binary", SDK, "--dest", str(partial), f"{SDK}=={version(SDK)}"]
    packages = [*pip, "install", "--target", str(partial / "packages"), IDENTITY, f"{SDK}=={version(SDK)}", "aiohttp"]
    for command in (source, packages):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False)
            problem = "" if done.returncode == 0 else done.stderr.strip()[-500:]
        except subprocess.TimeoutExpired:
            problem = f"no end within {INSTALL_LIMIT_S:g} s"
        if problem:
            do_without(f"the source package of the SDK cannot be had: {problem}", required)
    (archive,) = partial.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        unpack(tar, partial / "source")
    (samples,) = (partial / "source").glob("*/samples")
    samples.rename(partial / "samples")
    partial.rename(folder)


class Island:
    """A network with a loopback and nothing else; lives as long as its one idle process.

    Args:
        hosts: Names with their addresses, which are then all that can be resolved; None for the machine's own file.
        folder: Where the files of ``hosts`` are kept; needed with them.
    """

    def __init__(self, hosts: Mapping[str, str] | None = None, folder: Path | None = None) -> None:
        kinds = ["--user", "--net"]
        steps = ["ip link set lo up"]
        if hosts is not None:
            assert folder is not None
            kinds.append("--mount")
            lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in hosts.items())]
            (folder / "hosts").write_text("\n".join(lines) + "\n")
            # Nobody answers there, and that is told at once.
            (folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
            steps += [f"mount --bind '{folder}/{name}' /etc/{name}" for name in ("hosts", "resolv.conf")]
        self._holder = subprocess.Popen(
            ["unshare", "--map-root-user", *kinds, "sh", "-c", " && ".join([*steps, "echo up", "exec cat"])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        self.is_up = self._holder.stdout.readline() == b"up\n"
        pid = str(self._holder.pid)
        #: What a command begins with to run there.
        self.prefix = ("nsenter", "--preserve-credentials", *kinds, "--target", pid, "--")

    def within(self, folder: Path) -> tuple[str, ...]:
        """The same for a working directory: whoever enters a namespace of mounts loses the one that it had."""
        return (*self.prefix, "env", f"--chdir={folder}")

    def close(self) -> None:
        self._holder.communicate()


def cleaned_environment() -> dict[str, str]:
    """The environment without what sends clients elsewhere."""
    return {name: value for name, value in os.environ.items() if name.upper() not in _LEFT_OUT}


def copy_of_certifi(obtained: Path, folder: Path, authorities: Iterable[Path]) -> Path:
    """A folder of packages whose list of authorities is ``authorities``; returns the list's path.

    Whoever runs a company's authority adds it so: programs and SDK know of nothing. The authorities of the world, which
    nobody meets in a network of one's own, are left out: the SDK for asyncio reads all of them for each connection.
    """
    shutil.copytree(obtained / "packages" / "certifi", folder / "certifi")
    bundle = folder / "certifi" / "cacert.pem"
    bundle.write_text("\n".join(authority.read_text() for authority in authorities))
    return bundle
