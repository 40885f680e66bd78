"""How commands fail: each kind of failure has an exit status of its own."""

from __future__ import annotations

from http import HTTPStatus

import click


class NotFound(click.ClickException):
    """There is no such entity: status 3."""

    exit_code = 3


class AlreadyExists(click.ClickException):
    """What is to be made is there already: status 4."""

    exit_code = 4


class Refused(click.ClickException):
    """The key or token is missing, wrong, or without the right: status 5."""

    exit_code = 5


class Unreachable(click.ClickException):
    """No server answers, or none runs: status 6."""

    exit_code = 6


_KINDS: dict[int, type[click.ClickException]] = {
    HTTPStatus.NOT_FOUND: NotFound,
    HTTPStatus.CONFLICT: AlreadyExists,
    HTTPStatus.UNAUTHORIZED: Refused,
}


def failure(status: int, text: str) -> click.ClickException:
    """The failure that a status of HTTP means, with a text for people."""
    return _KINDS.get(status, click.ClickException)(text)
