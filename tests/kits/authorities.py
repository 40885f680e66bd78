"""Authorities that TLS trusts, which are looked up when a certificate is seen instead of read at each start.

Whoever imports aiohttp makes a context that reads all authorities of the system out of one file: 30 ms of processor
time. That is a tenth of the start of a server, and tests start hundreds of programs. In a folder that is named by
hashes OpenSSL looks for the one authority that it needs. So the same are trusted, and next to nothing is read.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path


def authorities_by_folder() -> dict[str, str]:
    """Environment variables for whatever is started; none where the system has no such folder."""
    paths = ssl.get_default_verify_paths()
    for folder in (os.environ.get("SSL_CERT_DIR"), paths.capath, paths.openssl_capath):
        if folder and any(Path(folder).glob("*.0")):
            return {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": folder}
    return {}
