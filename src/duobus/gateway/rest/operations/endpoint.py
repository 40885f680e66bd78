"""What those who run the server ask of it over HTTP: its stores, its fragments, and drills (PE4, IN1).

Addresses begin with ``/$duobus``, which no entity can be called. Everything demands the right Manage on the namespace,
but for what a key that may listen everywhere could find out by itself: how much there is of what.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from aiohttp import web

from duobus.auth.authorizer import NamespaceRules
from duobus.broker import FragmentHandle, MessageBroker, Queue, ScaleUnit
from duobus.errors import ArgumentInvalid, EntityNotFound, NotAllowed, ServiceBusError
from duobus.gateway.rest.authorization import Guard
from duobus.gateway.rest.operations.json_bodies import json_response
from duobus.gateway.rest.operations.registry import OperationEndpoint
from duobus.gateway.rest.request_target import MethodUnknown, Target
from duobus.gateway.waits import StepBudget
from duobus.model.address import whole_path
from duobus.model.descriptions import Right
from duobus.telemetry.audit_log import DONE, UPDATE, AuditTrail, Change

#: First segment of all addresses here.
PREFIX: Final = "$duobus"
#: What a store can be told, and what it is after that.
DRILLS: Final = {"fail": "failing", "stall": "stalling", "heal": "healthy"}
#: What a key with Listen on the namespace may ask, too.
LISTENING: Final = (("GET", "server"), ("GET", "entities"))
#: Method, and segments below ``/$duobus``, of a request for one connection.
CONNECTION_PARTS: Final = 3
#: Fragments that one answer names; ``?entity=`` asks for those of one.
FRAGMENTS_MAX: Final = 20_000
#: Steps of one slice of the list of fragments, and what one of them counts for beside its sources: some half a
#: millisecond, and 10 microseconds.
_STEPS_AT_ONCE: Final = 1_000
_STEPS_OF_ROW: Final = 20
#: What can be asked, and what can be ordered, for whoever asked for something else.
READ: Final = (
    *("server", "entities", "connections", "locks", "sessions", "history", "audit", "stores", "fragments"),
    *("moves", "backup", "events", "metering", "cluster"),
)
WRITTEN: Final = ("try-rule", "audit", "moves", "backup", "cluster/moves", "cluster/drains")
#: What is told in the audit log, by the segment below ``/$duobus``, and as what.
AUDITED: Final = {"stores": "store", "moves": "move", "backup": "backup"}
#: Characters of a path that the audit log tells.
PATH_LENGTH_MAX: Final = 512
#: Digits of the number of a store or fragment in a request; no server has as many as that.
DIGITS_MAX: Final = 9


class Drill(Protocol):
    """A store that can be told to fail; see ``duobus.storage.drill``."""

    @property
    def mode(self) -> str:
        """What it does now."""

    def set_mode(self, mode: str) -> None:
        """Do this from now on."""


class Backups(Protocol):
    """What makes backups; see ``duobus.server.backups``."""

    def start(self) -> dict[str, object]:
        """Begin one and return its status."""

    def status(self) -> dict[str, object]:
        """What became of the latest."""


class Overview(Protocol):
    """What is going on in the server; see ``duobus.server.monitoring.overview``."""

    def server(self) -> dict[str, object]:
        """The server itself."""

    async def entities(self, namespace: str, prefix: str) -> list[dict[str, object]]:
        """The entities of a namespace whose paths begin so, with what is in them and what was done with them."""

    async def connections(self, namespace: str) -> list[dict[str, object]]:
        """The AMQP connections to a namespace, with their links."""

    def disconnect(self, namespace: str, connection: str, *, who: str, origin: str) -> dict[str, object]:
        """Close a connection, and tell whose it was."""


class AdminOperations:
    """Serves these requests for one server.

    Args:
        unit: What is asked about.
        guard: Says who may.
        drills: Store id to the store under drill; empty where drills are not allowed. Changes with the stores of a
            server among others.
        backups: None where everything is kept in memory.
        overview: Tells what is going on.
        others: Answer what they know; everything else is answered here.
        audit: Is told of drills, moves and backups.
        now_ms: Wall clock time.
    """

    def __init__(
        self,
        unit: ScaleUnit,
        guard: Guard,
        drills: Mapping[int, Drill],
        backups: Backups | None,
        overview: Overview | None = None,
        others: Sequence[OperationEndpoint] = (),
        *,
        audit: AuditTrail,
        now_ms: Callable[[], int],
    ) -> None:
        self._unit = unit
        self._guard = guard
        self._drills = drills
        self._backups = backups
        self._overview = overview
        self._others = others
        self._audit = audit
        self._now_ms = now_ms

    async def answer(self, request: web.Request, target: Target, namespace: NamespaceRules) -> web.StreamResponse:
        """Answer one request.

        Raises:
            ServiceBusError: It is refused; the caller says so.
        """
        for endpoint in self._others:
            answer = await endpoint.answer(request, target, namespace)
            if answer is not None:
                return answer
        call = (request.method, *target.lower[1:])
        who = self._guard.demand(request, target, namespace, Right.LISTEN if call in LISTENING else Right.MANAGE)
        seen = None if self._overview is None else await _seen(self._overview, call, target, namespace.name)
        if seen is not None:
            return json_response(seen)
        if self._overview is not None and call[:2] == ("DELETE", "connections") and len(call) == CONNECTION_PARTS:
            origin = request.remote or ""
            return json_response(self._overview.disconnect(namespace.name, call[2], who=who, origin=origin))
        kind = AUDITED.get(call[1]) if call[0] == "POST" and len(call) > 1 else None
        if kind is None:
            return await self._of_stores(call, target, namespace)
        path = "/".join(filter(None, [*target.segments[2:], target.query.get("entity", "")]))[:PATH_LENGTH_MAX]
        change = Change(UPDATE, kind, namespace.name, path, who=who, origin=request.remote or "", interface="http")
        self._audit.begin(change, self._now_ms())
        outcome = DONE
        try:
            return await self._of_stores(call, target, namespace)
        except ServiceBusError as error:
            outcome = str(error)
            raise
        finally:
            self._audit.end(change, self._now_ms(), outcome)

    async def _of_stores(self, call: tuple[str, ...], target: Target, namespace: NamespaceRules) -> web.Response:
        match call:
            case "GET", "stores":
                return web.json_response([self._store(broker) for broker in self._unit.brokers.values()])
            case "GET", "fragments":
                body = await self._fragments(namespace.name, target.query.get("entity"))
                return web.Response(body=body, content_type="application/json", charset="utf-8")
            case "POST", "stores", number, drill if drill in DRILLS:
                return web.json_response(self._drilled(self._broker(number), drill))
            case "POST", "moves":
                return web.json_response(self._moving(namespace.name, target), status=202)
            case "GET", "moves":
                return web.json_response(self._unit.moves.status())
            case "POST", "backup":
                return web.json_response(self._backing_up().start(), status=202)
            case "GET", "backup":
                return web.json_response(self._backing_up().status())
        raise MethodUnknown(
            f"{call[0]} means nothing for this address. GET {_listed(READ)} or /$duobus/keys; POST {_listed(WRITTEN)} "
            "or /$duobus/stores/<number>/fail, .../stall or .../heal; DELETE /$duobus/connections/<connection>."
        )

    def _broker(self, number: str) -> MessageBroker:
        broker = self._unit.brokers.get(int(number)) if _is_number(number) else None
        if broker is None:
            raise EntityNotFound(f"There is no messaging store {number[:20]}. GET /$duobus/stores lists them.")
        return broker

    def _moving(self, namespace: str, target: Target) -> dict[str, object]:
        """No drill, and so not bound to ``--allow-drills``: it is for servers in use."""
        found = [target.query.get(name, "") for name in ("entity", "fragment", "to")]
        entity, fragment, store = found
        if not entity or not (_is_number(fragment) and _is_number(store)):
            raise ArgumentInvalid(
                "A move needs a queue or topic, one of its fragments and a store: POST /$duobus/moves?entity=orders"
                "&fragment=3&to=2"
            )
        return self._unit.moves.start(namespace, entity, int(fragment), int(store))

    def _backing_up(self) -> Backups:
        if self._backups is None:
            raise NotAllowed("This server keeps everything in memory (--ephemeral), so there is nothing to back up.")
        return self._backups

    def _store(self, broker: MessageBroker) -> dict[str, object]:
        drill = self._drills.get(broker.store_id)
        return {
            "store": broker.store_id,
            "place": broker.place,
            "state": broker.state,
            "reason": broker.last_error,
            "drill": None if drill is None else drill.mode,
            "generation": broker.generation,
            "fragments": len(broker.plans),
            "commits": broker.commits,
            "commitSeconds": round(broker.commit_seconds, 6),
            "failures": broker.failures,
            "quarantined": len(broker.quarantined),
        }

    def _drilled(self, broker: MessageBroker, drill: str) -> dict[str, object]:
        store = self._drills.get(broker.store_id)
        if store is None:
            raise NotAllowed("This server does not allow drills. Start it with --allow-drills, on data you can lose.")
        store.set_mode(DRILLS[drill])
        return self._store(broker)

    async def _fragments(self, namespace: str, path: str | None) -> bytes:
        """What there is to tell of each fragment, as JSON; others have their turns meanwhile."""
        home = self._unit.namespace(namespace)
        budget = StepBudget(_STEPS_AT_ONCE)
        parts: list[str] = []
        number = 0
        for entity in (*home.queues.values(), *home.topics.values()):
            if (path is not None and _named(entity).lower() != path.lower()) or not home.serves(entity):
                continue
            for handle in entity.fragments:
                parts.append(json.dumps(self._fragment_row(entity, handle)))
                number += 1
                await budget.spend(_STEPS_OF_ROW + (0 if handle.fragment is None else len(handle.fragment.sources)))
                if number >= FRAGMENTS_MAX:
                    break
            if number >= FRAGMENTS_MAX:
                break
        if path is not None and not parts:
            # Of servers that share a catalog all are asked.
            raise EntityNotFound(f"There is no queue or topic '{path}' in this namespace.")
        return f"[{', '.join(parts)}]".encode()

    def _fragment_row(self, entity: Queue, handle: FragmentHandle) -> dict[str, object]:
        fragment = handle.fragment
        sources = [] if fragment is None else list(fragment.sources.values())
        return {
            "entity": _named(entity),
            "kind": entity.kind,
            "fragment": handle.number,
            "store": handle.store.store_id,
            "available": handle.online,
            "movesTo": self._unit.moves.target_of(handle.entity_id, handle.number),
            "epoch": fragment.epoch if fragment is not None and handle.online else None,
            # Of a store that is away nobody knows how many it holds.
            "messages": sum(sum(source.numbers) for source in sources) if handle.online else None,
            "bytes": sum(source.bytes for source in sources) if handle.online else None,
        }


def _named(entity: Queue) -> str:
    """What users call the entity: that of which it is a shard, if it is one."""
    return whole_path(entity.path)


async def _seen(overview: Overview, call: tuple[str, ...], target: Target, namespace: str) -> object:
    match call:
        case "GET", "server":
            return overview.server()
        case "GET", "entities":
            return await overview.entities(namespace, target.query.get("prefix", ""))
        case "GET", "connections":
            return await overview.connections(namespace)
    return None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"/{PREFIX}/{name}" for name in names)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
