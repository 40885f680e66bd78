"""The token endpoint: client credentials (RFC 6749, 4.4) at the addresses that Azure's identity libraries use.

For local use: whoever comes from another machine has to come over TLS. Programs that name no client, because the cloud
gives them an identity of their machine (``DefaultAzureCredential``), are told by two variables where to get it: the
endpoint takes that protocol, of Azure App Service, as well.
"""

from __future__ import annotations

import base64
import binascii
from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qsl, unquote_plus

from aiohttp import web

from duobus.gateway.rest.local_issuer import Granted, LocalIssuer
from duobus.gateway.rest.request_target import HOST
from duobus.telemetry.logs import Log

#: Longest form that is read; a login has four short fields. With assertions, which are refused, it is longer.
FORM_BYTES_MAX: Final = 16_384
FIELDS_MAX: Final = 32

#: Header that proves the identity of a machine: ``client_id:client_secret``, which its clients hand on as it is.
IDENTITY_HEADER: Final = "X-IDENTITY-HEADER"

#: Where the identity library for Java looks when the authority's path is ``/adfs``: an AD FS, which has no tenants.
AD_FS: Final = "/adfs/oauth2/token"

_NO_STORE: Final = {"Cache-Control": "no-store", "Pragma": "no-cache"}


class _Refused(Exception):
    def __init__(self, error: str, description: str, status: int = 400) -> None:
        super().__init__(description)
        self.error = error
        self.status = status


class TokenEndpoint:
    """Answers logins, and tells where and with which keys."""

    def __init__(self, issuer: LocalIssuer, log: Log) -> None:
        self._issuer = issuer
        self._log = log

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register the addresses; an entity whose path is one of them cannot be reached over HTTP."""
        tenant = f"/{self._issuer.options.tenant}"
        router.add_post(f"{tenant}/oauth2/v2.0/token", self._token)
        router.add_post(AD_FS, self._token)
        for path in ("/v2.0/.well-known/openid-configuration", "/.well-known/openid-configuration"):
            router.add_get(tenant + path, self._configuration)
        router.add_get(f"{tenant}/discovery/v2.0/keys", self._keys)
        router.add_get(f"{tenant}/identity/token", self._identity)

    async def _token(self, request: web.Request) -> web.Response:
        try:
            base = self._base(request)
            fields = await _form(request)
            answer = self._answer(request, fields, base)
        except _Refused as refused:
            return self._refusal(request, refused)
        return web.json_response(answer, headers=_NO_STORE)

    async def _identity(self, request: web.Request) -> web.Response:
        """The identity of a machine, as App Service gives it out (IDENTITY_ENDPOINT, IDENTITY_HEADER)."""
        try:
            base = self._base(request)
            client_id, _, secret = request.headers.get(IDENTITY_HEADER, "").partition(":")
            resource = request.query.get("resource", "")
            answer = self._granted(client_id, secret, f"{resource}/.default", base)
        except _Refused as refused:
            return self._refusal(request, refused)
        found = {"access_token": answer.token, "token_type": "Bearer", "resource": resource, "client_id": client_id}
        return web.json_response(found | {"expires_on": str(answer.expires_s)}, headers=_NO_STORE)

    def _refusal(self, request: web.Request, refused: _Refused) -> web.Response:
        self._log.info("login refused", error=refused.error, client=request.remote)
        headers = dict(_NO_STORE)
        if refused.status == 401:
            headers["WWW-Authenticate"] = 'Basic realm="duobus"'
        body = {"error": refused.error, "error_description": str(refused)}
        return web.json_response(body, status=refused.status, headers=headers)

    def _answer(self, request: web.Request, fields: dict[str, str], base: str) -> dict[str, object]:
        if fields.get("grant_type") != "client_credentials":
            raise _Refused("unsupported_grant_type", "Use the grant_type client_credentials.")
        granted = self._granted(*_login(request, fields), fields.get("scope", ""), base)
        life_s = self._issuer.options.lifetime_seconds
        return {
            "token_type": "Bearer",
            "expires_in": life_s,
            "ext_expires_in": life_s,
            "access_token": granted.token,
        }

    def _granted(self, client_id: str, secret: str, scope: str, base: str) -> Granted:
        client = self._issuer.client(client_id, secret)
        if client is None:
            raise _Refused("invalid_client", "The client_id or the client_secret is wrong.", 401)
        audience = self._issuer.audience(scope)
        if audience is None:
            raise _Refused("invalid_scope", "Use the scope https://servicebus.azure.net/.default.")
        return self._issuer.token(client, audience, f"{base}/v2.0")

    async def _configuration(self, request: web.Request) -> web.Response:
        try:
            base = self._base(request)
        except _Refused as refused:
            return web.json_response({"error": refused.error, "error_description": str(refused)}, status=400)
        found = {
            "issuer": f"{base}/v2.0",
            "token_endpoint": f"{base}/oauth2/v2.0/token",
            # Libraries want it to be there; nobody can log in by browser.
            "authorization_endpoint": f"{base}/oauth2/v2.0/authorize",
            "jwks_uri": f"{base}/discovery/v2.0/keys",
            "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
            "grant_types_supported": ["client_credentials"],
            "response_types_supported": ["token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        }
        return web.json_response(found)

    async def _keys(self, request: web.Request) -> web.Response:
        return web.Response(body=self._issuer.key_set, content_type="application/json")

    def _base(self, request: web.Request) -> str:
        """The address of the tenant as the client knows the server."""
        if not request.secure and not _is_local(request.remote):
            raise _Refused("invalid_request", "Use https: secrets of other machines are not taken in clear text.")
        if not HOST.fullmatch(request.host):
            raise _Refused("invalid_request", "The header Host is no host name.")
        return f"{'https' if request.secure else 'http'}://{request.host}/{self._issuer.options.tenant}"


async def _form(request: web.Request) -> dict[str, str]:
    if request.content_type != "application/x-www-form-urlencoded":
        raise _Refused("invalid_request", "Send a form: Content-Type application/x-www-form-urlencoded.")
    data = bytearray()
    while len(data) <= FORM_BYTES_MAX and (part := await request.content.read(FORM_BYTES_MAX + 1 - len(data))):
        data += part
    if len(data) > FORM_BYTES_MAX:
        raise _Refused("invalid_request", f"The form is longer than {FORM_BYTES_MAX} bytes.", 413)
    try:
        pairs = parse_qsl(data.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
    except ValueError:
        raise _Refused("invalid_request", f"The form is not UTF-8, or has more than {FIELDS_MAX} fields.") from None
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise _Refused("invalid_request", "The form has a field twice.")
    return fields


def _login(request: web.Request, fields: dict[str, str]) -> tuple[str, str]:
    """Name and secret, from the form or from the header (RFC 6749, 2.3.1)."""
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return fields.get("client_id", ""), fields.get("client_secret", "")
    try:
        name, _, secret = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise _Refused("invalid_client", "The header Authorization is no Basic login.", 401) from None
    return unquote_plus(name), unquote_plus(secret)


def _is_local(address: str | None) -> bool:
    try:
        return ip_address(address or "").is_loopback
    except ValueError:
        return False
