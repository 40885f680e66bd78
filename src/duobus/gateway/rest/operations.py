"""What those who run the server ask of it over HTTP: its stores, its fragments, and drills (PE4, IN1).

Addresses begin with ``/$duobus``, which no entity can be called. Everything demands the right Manage on the namespace.
"""

from __future__ import annotations

from typing import Final, Protocol

from aiohttp import web

from duobus.auth.authorizer import NamespaceRules
from duobus.broker import MessageBroker, ScaleUnit
from duobus.errors import ArgumentInvalid, EntityNotFound, NotAllowed
from duobus.gateway.rest.authorization import Guard
from duobus.gateway.rest.request_target import MethodUnknown, Target
from duobus.model.descriptions import Right

#: First segment of all addresses here.
PREFIX: Final = "$duobus"
#: What a store can be told, and what it is after that.
DRILLS: Final = {"fail": "failing", "stall": "stalling", "heal": "healthy"}
#: Fragments that one answer names; ``?entity=`` asks for those of one.
FRAGMENTS_MAX: Final = 20_000
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


class AdminOperations:
    """Serves these requests for one server.

    Args:
        unit: What is asked about.
        guard: Says who may.
        drills: Store id to the store under drill; empty where drills are not allowed.
        backups: None where everything is kept in memory.
    """

    def __init__(self, unit: ScaleUnit, guard: Guard, drills: dict[int, Drill], backups: Backups | None) -> None:
        self._unit = unit
        self._guard = guard
        self._drills = drills
        self._backups = backups

    def answer(self, request: web.Request, target: Target, namespace: NamespaceRules) -> web.Response:
        """Answer one request.

        Raises:
            ServiceBusError: It is refused; the caller says so.
        """
        self._guard.demand(request, target, namespace, Right.MANAGE)
        match request.method, *target.lower[1:]:
            case "GET", "stores":
                return web.json_response([self._store(broker) for broker in self._unit.brokers.values()])
            case "GET", "fragments":
                return web.json_response(self._fragments(namespace.name, target.query.get("entity")))
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
            f"{request.method} means nothing for this address. GET /$duobus/stores, /$duobus/fragments, "
            "/$duobus/moves, /$duobus/backup or /$duobus/keys; POST /$duobus/moves, /$duobus/backup or "
            "/$duobus/stores/<number>/fail, .../stall or .../heal."
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
            "fragments": len(broker.plans),
            "commits": broker.commits,
            "failures": broker.failures,
            "quarantined": len(broker.quarantined),
        }

    def _drilled(self, broker: MessageBroker, drill: str) -> dict[str, object]:
        store = self._drills.get(broker.store_id)
        if store is None:
            raise NotAllowed("This server does not allow drills. Start it with --allow-drills, on data you can lose.")
        store.set_mode(DRILLS[drill])
        return self._store(broker)

    def _fragments(self, namespace: str, path: str | None) -> list[dict[str, object]]:
        home = self._unit.namespace(namespace)
        found = []
        for entity in (*home.queues.values(), *home.topics.values()):
            if path is not None and entity.path.lower() != path.lower():
                continue
            for handle in entity.fragments:
                fragment = handle.fragment
                sources = [] if fragment is None else list(fragment.sources.values())
                found.append(
                    {
                        "entity": entity.path,
                        "kind": entity.kind,
                        "fragment": handle.number,
                        "store": handle.store.store_id,
                        "available": handle.online,
                        # Of a store that is away nobody knows how many it holds.
                        "messages": sum(sum(source.numbers) for source in sources) if handle.online else None,
                        "bytes": sum(source.bytes for source in sources) if handle.online else None,
                    }
                )
                if len(found) >= FRAGMENTS_MAX:
                    return found
        if path is not None and not found:
            where = "at this server; others share its catalog, ask them" if home.is_shared else "in this namespace"
            raise EntityNotFound(f"There is no queue or topic '{path}' {where}.")
        return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
