"""The management API: what each request for it is answered (Azure: Service Bus REST API)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from duobus.auth.authorizer import NamespaceRules
from duobus.broker import ScaleUnit
from duobus.broker.entities.namespace import Namespace
from duobus.clock import Clock, Entropy
from duobus.errors import EntityNotFound, ServerBusy
from duobus.gateway.rest.atom import resources
from duobus.gateway.rest.atom.auditing import Auditing
from duobus.gateway.rest.atom.entities import Entities, Forwarding, Thing, is_partitioned, title_of
from duobus.gateway.rest.atom.paging import cut, next_url, page_of
from duobus.gateway.rest.atom.queues import demand_target
from duobus.gateway.rest.atom.request_origin import RequestOrigin
from duobus.gateway.rest.atom.resources import Resource, resource_of
from duobus.gateway.rest.atom.xml import documents
from duobus.gateway.rest.authorization import Guard, Lacking, RightLacking
from duobus.gateway.rest.repeatable_requests import Done, RepeatableRequests
from duobus.gateway.rest.request_bodies import BodyBudget, read_body
from duobus.gateway.rest.request_target import MethodUnknown, Target
from duobus.model.descriptions import Right, TopicDescription
from duobus.model.options import HttpOptions
from duobus.telemetry.audit_log import AuditTrail

#: Bytes of one description; one with twelve access rules and the longest metadata has some 10 KiB.
DESCRIPTION_BYTES_MAX: Final = 262_144
#: Changes that are under way at a time; more are told to come again.
CHANGES_MAX: Final = 64

_NOT_LISTED: Final = "Publicly Listed Services"
_FORWARDS: Final = (
    ("forward_to", "ServiceBusSupplementaryAuthorization"),
    ("forward_dead_lettered_messages_to", "ServiceBusDlqSupplementaryAuthorization"),
)
#: Kind of resource to what it is called in refusals, and whether it is a list.
_PARTS: Final = {
    resources.SUBSCRIPTION: ("Subscription", False),
    resources.SUBSCRIPTIONS: ("Subscription", True),
    resources.RULE: ("Rule", False),
    resources.RULES: ("Rule", True),
}
_LISTED: Final = (resources.QUEUES, resources.TOPICS, resources.SUBSCRIPTIONS, resources.RULES)


class Management:
    """Answers management requests.

    Args:
        unit: What is managed.
        guard: Who may.
        clock: Time.
        entropy: For keys that are generated.
        options: What the operator chose.
        started_ms: What namespaces are told to have been created at.
        room: Memory for bodies.
        audit: Hears of every change.
    """

    def __init__(
        self,
        unit: ScaleUnit,
        guard: Guard,
        *,
        clock: Clock,
        entropy: Entropy,
        options: HttpOptions,
        started_ms: int,
        room: BodyBudget,
        audit: AuditTrail,
    ) -> None:
        self._unit = unit
        self._guard = guard
        self._clock = clock
        self._options = options
        self._started_ms = started_ms
        self._room = room
        self._entities = Entities(unit, clock, entropy, options.tier)
        self._repeats = RepeatableRequests(clock)
        self._auditing = Auditing(audit, self._entities, clock)

    async def close(self) -> None:
        """Let changes that are under way come to their end."""
        await self._repeats.close()

    async def answer(
        self, request: web.Request, target: Target, place: RequestOrigin, namespace: NamespaceRules
    ) -> web.StreamResponse:
        """Answer one request.

        Raises:
            ServiceBusError: It is refused; the caller says so.
        """
        resource = resource_of(target)
        # The namespace's name and kind are for everybody with a good token.
        right = None if resource.kind == resources.NAMESPACE else Right.MANAGE
        home = self._unit.namespace(namespace.name)
        is_read = request.method in {"GET", "HEAD"}
        try:
            who = self._guard.demand(request, target, namespace, right, lacking(resource, request.method))
        except RightLacking:
            if is_read and resource.kind == resources.ENTITY and not self._is_there(resource, target, home):
                return self._nothing(place)
            raise
        if is_read:
            return self._read(resource, target, place, home)
        if request.method not in {"PUT", "DELETE"} or resource.kind in (*_LISTED, resources.NAMESPACE):
            raise MethodUnknown(
                f"{request.method} means nothing for this address. Use GET; PUT and DELETE for a single entity; POST "
                "for its messages."
            )
        body = await read_body(request, DESCRIPTION_BYTES_MAX, self._room)
        try:
            done = await self._change(request, resource, target, place, home, body, who)
        finally:
            self._room.give(len(body))
        return _response(done)

    # -- reading ------------------------------------------------------------------------------------------------

    def _read(self, resource: Resource, target: Target, place: RequestOrigin, home: Namespace) -> web.Response:
        if resource.kind == resources.NAMESPACE:
            return self._namespace_info(place, home)
        if resource.kind in _LISTED:
            return self._list(resource.kind.title(), self._listed(resource, home), target, place)
        if resource.kind == resources.ENTITY and not self._is_there(resource, target, home):
            return self._nothing(place)
        try:
            thing = self._entities.find(home, resource)
        except EntityNotFound:
            path = "|".join(name for name in (resource.entity, resource.subscription, resource.rule) if name)
            raise EntityNotFound(f"Entity '{home.name}:Topic:{path}' was not found.") from None
        self._options.demand_version(target.query, is_partitioned(thing))
        return _response(Done(200, self._entities.entry(thing, place), documents.ENTRY_TYPE))

    def _is_there(self, resource: Resource, target: Target, home: Namespace) -> bool:
        """Whether there is a queue or topic to describe."""
        if target.lower[-1:] == ("$deadletterqueue",):
            # There is one, but no description of it.
            return False
        try:
            self._entities.find(home, resource)
        except EntityNotFound:
            return False
        return True

    def _nothing(self, place: RequestOrigin) -> web.Response:
        """The answer to a GET of a queue or topic that does not exist: a feed without entries, and 200."""
        empty = documents.feed(_NOT_LISTED, (), url=place.url(""), following=None, updated_at_ms=self._now_ms())
        return _response(Done(200, empty, documents.FEED_TYPE))

    def _listed(self, resource: Resource, home: Namespace) -> Sequence[Thing]:
        try:
            return self._entities.listed(home, resource)
        except EntityNotFound:
            # What belongs to something that is missing is an empty list.
            return ()

    def _list(self, title: str, things: Sequence[Thing], target: Target, place: RequestOrigin) -> web.Response:
        page = page_of(target.query)
        found, is_followed = cut(things, page, title_of)
        url = place.url("/".join(target.segments))
        text = documents.feed(
            title,
            [self._entities.entry(thing, place) for thing in found],
            url=f"{url}?$skip={page.skip}&$top={page.top}",
            following=next_url(url, page) if is_followed else None,
            updated_at_ms=self._now_ms(),
        )
        return _response(Done(200, text, documents.FEED_TYPE))

    def _namespace_info(self, place: RequestOrigin, home: Namespace) -> web.Response:
        inside = documents.namespace_info(home.name, self._options.tier.sku, self._started_ms)
        text = documents.entry(
            documents.NAMESPACE,
            inside,
            url=place.url("$namespaceinfo"),
            title=home.name,
            author=home.name,
            created_at_ms=self._started_ms,
            updated_at_ms=self._started_ms,
        )
        return _response(Done(200, text, documents.ENTRY_TYPE))

    # -- changing -----------------------------------------------------------------------------------------------

    async def _change(
        self,
        request: web.Request,
        resource: Resource,
        target: Target,
        place: RequestOrigin,
        home: Namespace,
        body: bytes,
        who: str,
    ) -> Done:
        if self._repeats.running >= CHANGES_MAX:
            raise ServerBusy("Too many changes are under way at the moment. Try again in a few seconds.")
        is_update = "If-Match" in request.headers
        authority = f"{place.scheme}://{place.host}/{home.name}"
        parts = (
            authority.encode(),
            request.method.encode(),
            "/".join(target.lower).encode(),
            b"update" if is_update else b"create",
            body,
        )

        async def work() -> Done:
            if request.method == "DELETE":
                return await self._delete(resource, target, home)
            return await self._put(request, resource, target, place, home, body)

        async def audited() -> Done:
            return await self._auditing.run(request, resource, home, who, body, work)

        return await self._repeats.once(request.headers.get("x-ms-client-request-id"), parts, audited)

    async def _delete(self, resource: Resource, target: Target, home: Namespace) -> Done:
        thing = self._entities.find(home, resource)
        self._options.demand_version(target.query, is_partitioned(thing))
        await self._entities.delete(home, thing)
        # 200 and nothing else: Python takes neither 202 nor 204.
        return Done(200, "", "")

    async def _put(
        self,
        request: web.Request,
        resource: Resource,
        target: Target,
        place: RequestOrigin,
        home: Namespace,
        body: bytes,
    ) -> Done:
        node = documents.read_entry(body)
        is_update = "If-Match" in request.headers
        if home.remote_entities is not None and b"Forward" in body:
            # Another server may have created the target a moment ago.
            await home.remote_entities.refresh()

        def check(wanted: Forwarding, is_partitioned: bool) -> None:
            self._options.demand_version(target.query, is_partitioned)
            if not isinstance(wanted, TopicDescription):
                demand_target(home, resource.entity, wanted)
            self._demand_forward(request, wanted)

        thing = await self._entities.put(home, resource, node, place, is_update=is_update, check=check)
        return Done(200 if is_update else 201, self._entities.entry(thing, place, is_answer=True), documents.ENTRY_TYPE)

    def _demand_forward(self, request: web.Request, wanted: Forwarding) -> None:
        """Whoever has messages forwarded needs the right to send to where they go (Azure: autoforwarding)."""
        namespace = self._guard.namespace_of(request.host)
        for attribute, header in _FORWARDS:
            name: str | None = getattr(wanted, attribute, None)
            if name is not None:
                text = request.headers.get(header) or request.headers.get("Authorization") or ""
                self._guard.demand_for(text, tuple(name.lower().split("/")), namespace, Right.SEND)

    def _now_ms(self) -> int:
        return self._clock.now_ms()


def lacking(resource: Resource, method: str) -> Lacking:
    """What a request is told whose token has not the right Manage, in the service's words and places.

    Programs look for these words, the second SubCode within those for parts of topics among them. The SDK for Go shows
    the first line of an answer, where the service has them too.
    """
    if resource.kind in _PARTS:
        single, is_list = _PARTS[resource.kind]
        verbs = {"PUT": f"CreateOrUpdate{single}", "DELETE": f"Delete{single}"}
        verb = verbs.get(method) or (f"Enumerate{single}s" if is_list else f"Get{single}")
        reason = f"SubCode=40100: Unauthorized : Unauthorized access for '{verb}' operation"
        return Lacking(f"{reason}. The right Manage is needed.", reason=reason)
    action = {"PUT": "EntityWrite", "DELETE": "EntityDelete"}.get(method)
    if action is None:
        return Lacking("Manage,EntityRead claims required for this operation.", is_alone=True)
    return Lacking(f"Authorization failed for specified action: Manage,{action}.")


def _response(done: Done) -> web.Response:
    response = web.Response(status=done.status, body=done.text.encode())
    if done.content_type:
        response.headers["Content-Type"] = done.content_type
    return response
