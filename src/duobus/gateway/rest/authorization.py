"""Who may do what over HTTP: the token of a request against the resource that it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from aiohttp import web

from duobus.auth.authorizer import HTTP_GRACE_MS, INVALID_AUDIENCE, Authorizer, NamespaceRules
from duobus.clock import Clock
from duobus.errors import Unauthorized
from duobus.gateway.rest.request_target import Target
from duobus.model.descriptions import Right

#: No token was given.
MISSING = 40102
#: Where a token may stand, in order.
_HEADERS = ("Authorization", "ServiceBusAuthorization")
_MANAGE: Final = int(Right.MANAGE)


class Lacking(NamedTuple):
    """What a good token without the right is told, in the service's words."""

    text: str
    #: Whether nothing stands before the text, no SubCode either.
    is_alone: bool = False
    #: What the first line of the answer has behind the status, if not what belongs to 401.
    reason: str | None = None


class RightLacking(Unauthorized):
    """The token is good for the resource, but does not give the right that the request needs."""

    def __init__(self, lacking: Lacking) -> None:
        """``lacking``: what is told."""
        super().__init__(lacking.text)
        self.lacking = lacking


class Guard:
    """Checks tokens; every request anew, so that a changed key counts at once."""

    def __init__(self, authorizer: Authorizer, clock: Clock) -> None:
        self._authorizer = authorizer
        self._clock = clock

    def namespace_of(self, host: str) -> NamespaceRules:
        """The namespace that a Host header stands for."""
        return self._authorizer.namespace_of(host)

    def knows(self, host: str, namespace: NamespaceRules) -> bool:
        """Whether a host name is one of the namespace's own."""
        return self._authorizer.knows(host, namespace)

    def demand(
        self,
        request: web.Request,
        target: Target,
        namespace: NamespaceRules,
        right: Right | None,
        lacking: Lacking | None = None,
    ) -> str:
        """Raise Unauthorized unless the request's token gives ``right`` (None: it has to be good, no more).

        ``lacking``: what a good token without the right is told, in place of the general words.

        Returns:
            Whom it speaks for.

        Raises:
            Unauthorized: It is missing, wrong, expired, for something else, or without the right.
        """
        return self._demand(_token_of(request), target.lower, target.raw, namespace, right, lacking)

    def demand_at(self, request: web.Request, segments: Sequence[str], namespace: NamespaceRules, right: Right) -> str:
        """The same for a resource that is not the request's address."""
        return self._demand(_token_of(request), segments, segments, namespace, right)

    def demand_text(self, text: str, target: Target, namespace: NamespaceRules, right: Right) -> str:
        """The same for the text of a request's token."""
        return self._demand(text, target.lower, target.raw, namespace, right)

    def demand_for(self, text: str, segments: Sequence[str], namespace: NamespaceRules, right: Right) -> None:
        """The same for a token that stands elsewhere, and another resource: the target of a forward."""
        self._demand(text, segments, segments, namespace, right)

    def _demand(
        self,
        text: str,
        segments: Sequence[str],
        raw: Sequence[str],
        namespace: NamespaceRules,
        right: Right | None,
        lacking: Lacking | None = None,
    ) -> str:
        now_ms = self._clock.now_ms()
        grant = self._authorizer.authorize_token(text, namespace, now_ms, HTTP_GRACE_MS, segments)
        if right is None:
            return grant.who
        if not grant.covers(segments) and not grant.covers(raw):
            raise Unauthorized("The token was made for another resource. Make one for this address.", INVALID_AUDIENCE)
        # As numbers: flags of an enum are put together a hundred times slower, and this runs for each request.
        if not grant.rights & (int(right) | _MANAGE):
            raise RightLacking(
                lacking
                or Lacking(
                    f"Unauthorized access. '{(right.name or '').title()}' claim(s) are required to perform this "
                    f"operation. Resource: '/{'/'.join(segments)}'. Use a token of a rule that has it."
                )
            )
        return grant.who


def _token_of(request: web.Request) -> str:
    text = next((request.headers[name] for name in _HEADERS if name in request.headers), "")
    if not text:
        raise Unauthorized("The request has no token. Send one in the header Authorization.", MISSING)
    return text
