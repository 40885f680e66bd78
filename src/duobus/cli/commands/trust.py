"""``duobus trust``: what each language needs to trust the authority that ``--tls-self-signed`` makes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

import click

from duobus.cli.remote import NotFound

_EXAMPLE: Final = """
\b
Example:
  duobus trust --data ./bus
  duobus trust --data ./bus --language javascript
"""

#: What to do, and to what it applies, with the path of the authority's certificate for {ca}.
_WAYS: Final = {
    "python": (
        ("ServiceBusClient, and the administration client", "connection_verify={literal}"),
        ("instead, for the synchronous administration client", "export REQUESTS_CA_BUNDLE={ca}"),
    ),
    "javascript": (("before Node.js starts", "export NODE_EXTRA_CA_CERTS={ca}"),),
    "dotnet": (
        ("Debian, Ubuntu", "sudo cp {ca} /usr/local/share/ca-certificates/duobus.crt && sudo update-ca-certificates"),
    ),
    "java": (
        (
            "trust store of the JVM",
            "keytool -importcert -cacerts -storepass changeit -noprompt -alias duobus -file {ca}",
        ),
    ),
    "go": (("Linux", "export SSL_CERT_FILE={ca}"),),
    "curl": (("per call", "curl --cacert {ca} ..."),),
    "duobus": (("this command line", "export DUOBUS_CA={ca}"),),
}


@click.command(name="trust", epilog=_EXAMPLE)
@click.option(
    "--data",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Data folder of the server.",
)
@click.option("--language", type=click.Choice(tuple(_WAYS)), help="Only this one.")
def command(data: Path, language: str | None) -> None:
    """Tell what makes each language trust the server's own authority. Changes nothing."""
    ca = (data / "tls" / "ca.pem").resolve()
    if not ca.is_file():
        raise NotFound(f"There is no {ca}. duobus serve --tls-self-signed makes it at its first start.")
    for name in [language] if language else _WAYS:
        for purpose, text in _WAYS[name]:
            click.echo(f"# {name}: {purpose}")
            click.echo(text.format(ca=shlex.quote(str(ca)), literal=repr(str(ca))))
