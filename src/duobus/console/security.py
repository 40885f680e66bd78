"""What protects the console against other pages in the same browser, and its pages against what a namespace holds."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from duobus.console.settings import ConsoleSettings
from duobus.console.visits import Refusal

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

#: No script, style, image or connection but the console's own; no frame around the console; no form to elsewhere.
CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # A stricter policy would make browsers send no origin with a form, and the origin is looked at.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

#: Field and header that bring the CSRF token.
CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "X-CSRF-Token"

_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})


def protection(settings: ConsoleSettings) -> Middleware:
    """The outermost middleware: the name of the host, then headers for every answer."""
    known = known_hosts(settings)

    @web.middleware
    async def protect(request: web.Request, handler: Handler) -> web.StreamResponse:
        if _host_name(request.headers.get("Host", "")) not in known:
            response: web.StreamResponse = web.Response(
                status=HTTPStatus.MISDIRECTED_REQUEST,
                text="The console is reached by another name: localhost, or the address that its operator gave.\n",
            )
        else:
            response = await handler(request)
        # A stream has begun, and its headers are out; the answer to a stream has them from the signal below.
        if not response.prepared:
            add_headers(request, response)
        return response

    return protect


async def add_headers_to_stream(request: web.Request, response: web.StreamResponse) -> None:
    """Signal of aiohttp: add the headers to an answer that is about to go out."""
    add_headers(request, response)


def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers that every answer has."""
    response.headers.update(HEADERS)
    if request.path.startswith("/static/"):
        # With a mark of its contents in the address, a file is never another one. Whether there is such a file shows
        # late, so that an answer that was marked before may lose the mark here.
        is_kept = "v" in request.query and response.status in {HTTPStatus.OK, HTTPStatus.NOT_MODIFIED}
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if is_kept else "no-cache"
    else:
        # Pages hold messages, and sometimes keys: no copy stays in the browser.
        response.headers.setdefault("Cache-Control", "no-store")
    response.headers.pop("Server", None)


def known_hosts(settings: ConsoleSettings) -> frozenset[str]:
    """Names by which browsers may reach the console.

    A page of another site could have its own name lead to this machine and would then be of one origin with the
    console; the name in the request gives such a page away.
    """
    names = set(_LOCAL_NAMES)
    if settings.public_host is not None:
        names.add(settings.public_host)
    if settings.host not in _WILDCARDS:
        names.add(settings.host.lower())
    return frozenset(names)


def _host_name(host: str) -> str:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name


def demand_same_origin(request: web.Request, settings: ConsoleSettings) -> None:
    """Refuse a change that another page asks for; browsers say whose page it is.

    Raises:
        Refusal: It is another page's.
    """
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in {"same-origin", "none"}:
        raise Refusal(HTTPStatus.FORBIDDEN, "Another page has sent this form. Open the console and do this there.")
    origin = request.headers.get("Origin")
    if origin is None:
        return
    allowed = {request.headers.get("Host", "").lower()}
    if settings.public_url is not None:
        allowed.add(urlsplit(settings.public_url).netloc.lower())
    if urlsplit(origin).netloc.lower() not in allowed:
        raise Refusal(HTTPStatus.FORBIDDEN, "Another page has sent this form. Open the console and do this there.")


def demand_token(request: web.Request, given: str | None, expected: str) -> None:
    """Refuse a change without the token that the console's own pages have.

    Raises:
        Refusal: The token is missing or another one.
    """
    found = request.headers.get(CSRF_HEADER) or given or ""
    if not expected or not hmac.compare_digest(found.encode(), expected.encode()):
        raise Refusal(
            HTTPStatus.FORBIDDEN,
            "This page is too old: the session has changed since. Load the page anew, then try again.",
        )
