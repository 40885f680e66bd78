"""Requests of duobus's own, which Azure has not: ``/$duobus/...`` over HTTP, with the key of the connection string."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import click

from duobus.auth.sas_tokens import sign_token
from duobus.cli.remote import NotFound, Remote, said
from duobus.clock import Clock

#: How long the token of one command is good, and how long an answer may take, in seconds.
_TOKEN_S: Final = 300
_TIMEOUT_S: Final = 60


def operate(remote: Remote, method: str, path: str, query: Mapping[str, str] | None = None, body: object = None) -> Any:
    """Send one request and return the JSON of its answer, or None when that is empty.

    Raises:
        click.ClickException: The server does not answer, does not know the request (it is not a duobus), or refuses.
    """
    url = f"{remote.url}/$duobus/{urllib.parse.quote(path)}"
    if query:
        url += "?" + urllib.parse.urlencode(query)
    name, key = remote.access_key()
    request = urllib.request.Request(
        url,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": sign_token(remote.url + "/", name, key, Clock().now_ms() // 1000 + _TOKEN_S),
            "Content-Type": "application/json",
        },
    )
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if not remote.is_plain:
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=remote.ca)))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=_TIMEOUT_S) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        reason = remote.masked(said(Exception(error.read().decode(errors="replace"))))
        if error.code == HTTPStatus.NOT_FOUND:
            raise NotFound(reason) from None
        raise click.ClickException(reason or f"{remote.url} answered {error.code}.") from None
    except (urllib.error.URLError, OSError) as error:
        raise click.ClickException(
            f"{remote.url} does not answer: {error}\nStart a server there, or say with --connection-string, "
            "DUOBUS_CONNECTION_STRING or --endpoint which it is."
        ) from None
    try:
        return json.loads(text) if text else None
    except ValueError:
        raise click.ClickException(f"{remote.url} is no duobus server: only those have this command.") from None
