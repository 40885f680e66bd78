"""Bodies in JSON: of requests, of bounded size, and of answers."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from duobus.errors import ArgumentInvalid
from duobus.gateway.rest.request_bodies import BodyBudget, read_body


async def read_json(request: web.Request, limit: int, room: BodyBudget) -> Any:
    """Return what the body of a request says; it has at most ``limit`` bytes.

    Raises:
        ArgumentInvalid: The body is not JSON.
        ServiceBusError: See ``read_body``.
    """
    body = await read_body(request, limit, room)
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ArgumentInvalid(f"The body is not JSON ({type(error).__name__}).") from None
    finally:
        room.give(len(body))


def json_object(form: Any, what: str) -> dict[str, Any]:
    """Return the form, which has to be an object.

    Raises:
        ArgumentInvalid: The form is something else; ``what`` says what it should have been.
    """
    if not isinstance(form, dict):
        raise ArgumentInvalid(what)
    return form


def json_response(found: object, status: int = 200) -> web.Response:
    """An answer that no one on the way keeps; this encoder is some seventy times as quick as the usual one."""
    headers = {"Cache-Control": "no-store"}
    return web.Response(
        body=msgspec.json.encode(found), status=status, content_type="application/json", headers=headers
    )
