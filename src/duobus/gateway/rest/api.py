"""The front of both HTTP APIs: takes a request apart, sends it to the one that it is for, and answers what fails."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from duobus.auth.authorizer import Authorizer, NamespaceRules
from duobus.broker import ScaleUnit
from duobus.clock import Clock, Entropy
from duobus.errors import ArgumentInvalid, ServiceBusError
from duobus.gateway.rest.atom.management import Management
from duobus.gateway.rest.atom.request_origin import RequestOrigin
from duobus.gateway.rest.authorization import Guard
from duobus.gateway.rest.dead_letters.endpoint import DeadLetterEndpoint, is_dead_letter_request
from duobus.gateway.rest.error_responses import Answers
from duobus.gateway.rest.keys.endpoint import AccessRules, KeyEndpoint, is_key_request
from duobus.gateway.rest.operations import endpoint as operating
from duobus.gateway.rest.operations.cluster_endpoint import ClusterEndpoint, ClusterManagement
from duobus.gateway.rest.operations.endpoint import Drill
from duobus.gateway.rest.operations.registry import Operations, endpoints_of
from duobus.gateway.rest.operations.relay_endpoint import RelayEndpoint
from duobus.gateway.rest.request_bodies import BodyBudget
from duobus.gateway.rest.request_target import HOST, Target, parse_target
from duobus.gateway.rest.runtime.messages import Messages
from duobus.gateway.rest.runtime.routes import call_of
from duobus.gateway.rest.runtime.sends import Meter, Sends
from duobus.model.options import HttpOptions
from duobus.telemetry.audit_log import AuditTrail
from duobus.telemetry.logs import Log


class HttpApi:
    """Management and runtime API of one server; ``serve`` is the handler of all their requests.

    Attributes:
        sends: What takes messages in, for those that come by the fast path.
        clock: Time.
    """

    def __init__(
        self,
        unit: ScaleUnit,
        authorizer: Authorizer,
        *,
        clock: Clock,
        entropy: Entropy,
        log: Log,
        meter: Meter,
        errors: dict[str, int],
        options: HttpOptions,
        started_ms: int,
        drills: Mapping[int, Drill],
        backups: operating.Backups | None = None,
        audit: AuditTrail | None = None,
        overview: operating.Overview | None = None,
        operations: Operations | None = None,
        rules: AccessRules | None = None,
        sends: type[Sends] = Sends,
    ) -> None:
        self._guard = Guard(authorizer, clock)
        self._answers = Answers(clock, entropy, log, errors)
        room = BodyBudget()
        others = () if operations is None else tuple(endpoints_of(operations, self._guard, room))
        relays = None if operations is None else operations.relays
        self._relays = None if relays is None else RelayEndpoint(relays, self._guard, room)
        trail = audit or AuditTrail()
        self.cluster: ClusterManagement | None = None
        shared = ClusterEndpoint(lambda: self.cluster, self._guard, trail, clock.now_ms)
        self._operating = operating.AdminOperations(
            unit, self._guard, drills, backups, overview, (*others, shared), audit=trail, now_ms=clock.now_ms
        )
        self._has_operations = options.operations
        self._keys = None if rules is None else KeyEndpoint(rules, self._guard)
        self._management = Management(
            unit,
            self._guard,
            clock=clock,
            entropy=entropy,
            options=options,
            started_ms=started_ms,
            room=room,
            audit=trail,
        )
        self._service = DeadLetterEndpoint(unit, self._guard, room, meter)
        self.sends = sends(unit, self._guard, self._answers, entropy=entropy, options=options, meter=meter, room=room)
        self.clock = clock
        self._messages = Messages(unit, self._guard, self._answers, self.sends, options=options, meter=meter, room=room)

    async def close(self) -> None:
        """Let what must not be cut off come to its end."""
        await self._management.close()
        await self._service.close()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one request; whatever happens, with an answer of the service's form."""
        name = ""
        # As it came: what aiohttp makes of it is decoded already.
        text = request.raw_path
        try:
            host = request.host
            if not HOST.fullmatch(host):
                raise ArgumentInvalid("The header Host is no host name.")
            namespace = self._guard.namespace_of(host)
            name = namespace.name
            target = parse_target(text)
            own_host = host.partition("]")[0].strip("[") if host.startswith("[") else host.partition(":")[0]
            place = RequestOrigin(
                "https" if request.secure else "http",
                host,
                name,
                lambda other: other.lower() == own_host.lower() or self._guard.knows(other, namespace),
            )
            about = None if self._relays is None else self._relays.answer_relay(request, target, namespace)
            if about is not None:
                return about
            own = await self._own_answer(request, target, namespace)
            if own is not None:
                return own
            call = call_of(request.method, target)
            if call is not None:
                return await self._messages.answer(call, request, target, place, namespace)
            return await self._management.answer(request, target, place, namespace)
        except ServiceBusError as error:
            return self._answers.refusal(error, name, text.partition("?")[0])
        except Exception as error:  # noqa: BLE001 - nothing of ours is to show outside
            return self._answers.fault(error, name, text.partition("?")[0])

    async def _own_answer(
        self, request: web.Request, target: Target, namespace: NamespaceRules
    ) -> web.StreamResponse | None:
        """The answer to a request that Azure does not have; None to any other, or when these are switched off."""
        if not self._has_operations:
            return None
        if is_dead_letter_request(request.method, target):
            return await self._service.answer(request, target, namespace)
        if self._keys is not None and is_key_request(target):
            return await self._keys.answer(request, target, namespace)
        if target.lower[:1] == (operating.PREFIX,) and call_of(request.method, target) is None:
            return await self._operating.answer(request, target, namespace)
        return None


async def expect_nothing(request: web.Request) -> None:
    """Leave ``Expect: 100-continue`` to whoever reads the body."""
