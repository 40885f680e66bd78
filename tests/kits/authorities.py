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
    """Environment variables for whatever is started; none unless the file of the system lies in such a folder.

    Debian makes that file of what is in the folder. Another file, as that of a company, may hold more.
    """
    paths = ssl.get_default_verify_paths()
    folder = Path(os.environ.get("SSL_CERT_FILE") or paths.openssl_cafile).resolve().parent
    is_other = Path(os.environ.get("SSL_CERT_DIR") or folder).resolve() != folder
    if is_other or not any(folder.glob("*.0")):
        return {}
    return {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": str(folder)}
