"""Export and import of all entities, by the documents of ``duobus topology``."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from duobus.console.namespace.client import NamespaceClient
from duobus.console.namespace.failures import NamespaceError
from duobus.console.namespace.relay_forms import relay_request
from duobus.console.namespace.sdk_forms import entity_form, rule_form, sdk_properties, sdk_rule
from duobus.console.screens.entities.inventory import forget_rows
from duobus.console.visits import Outcome, Redirect, Refusal, Screen, View, Visit
from duobus.errors import ConfigurationError, ServiceBusError
from duobus.model.relay.description import RELAY, relay_document
from duobus.model.topology.changes import CONFLICT, CREATE, DELETE, FORWARDS, Step, TopologyChanges
from duobus.model.topology.document import NAMESPACE, document, parse_document, to_config, with_parameters

screen: Final = Screen("entities")

_TEMPLATE: Final = "entities/topology.html"
#: How long all entities of a namespace may take to be read, in seconds.
_READ_S: Final = 300.0
#: Largest document that is imported, in bytes.
DOCUMENT_BYTES_MAX: Final = 32 << 20
#: Steps that a page shows.
_STEPS_SHOWN: Final = 500
_MEMORY: Final = "topology"
#: What the SDK and the forms raise for a value of another type than a property has.
_NOT_MEANT: Final = (ServiceBusError, LookupError, AttributeError)


class _Import:
    """A document that a person has sent, and what becomes of it; one a session.

    Attributes:
        packed: The document, compressed.
        source: Which namespace of a ``Config.json`` is meant; None for the only one.
        prunes: Whether what the document does not have is deleted.
        warnings: What the author of the document should be told.
        records: The steps as they were shown.
        counts: Steps that are done, by their operations.
        total: Number of steps.
        state: ``planned``, ``running``, ``done`` or ``failed``.
        failure: Why it ended before its end.
    """

    def __init__(self, data: bytes, source: str | None, *, prunes: bool) -> None:
        self.packed = zlib.compress(data, 6)
        self.source = source
        self.prunes = prunes
        self.warnings: tuple[str, ...] = ()
        self.records: list[dict[str, Any]] = []
        self.counts: dict[str, int] = {}
        self.total = 0
        self.state = "planned"
        self.failure: NamespaceError | None = None

    def wanted(self) -> dict[str, Any]:
        """The document.

        Raises:
            ConfigurationError: It is none.
        """
        found, self.warnings = parse_document(zlib.decompress(self.packed), self.source)
        return found

    def deletes(self) -> int:
        """Number of steps that delete what somebody has made: a new subscription's first rule is none."""
        made = {record["path"] for record in self.records if record["operation"] == CREATE}
        return sum(
            record["operation"] == DELETE and record["path"].rpartition("/")[0] not in made for record in self.records
        )

    def told(self) -> dict[str, Any]:
        """What a page says of it."""
        counts: dict[str, int] = {}
        for record in self.records:
            counts[record["operation"]] = counts.get(record["operation"], 0) + 1
        return {
            "steps": self.records[:_STEPS_SHOWN],
            "total": len(self.records),
            "counts": counts,
            "deletes": self.deletes(),
            "warnings": list(self.warnings),
            "prunes": self.prunes,
            "state": self.state,
            "done": dict(self.counts),
            "done_total": sum(self.counts.values()),
            "failure": None
            if self.failure is None
            else {"text": self.failure.text, "tracking_id": self.failure.tracking_id},
        }


def _current(visit: Visit) -> _Import | None:
    found = visit.session.memory.get(_MEMORY)
    return found if isinstance(found, _Import) else None


def _page(visit: Visit, status: int = HTTPStatus.OK, fault: str = "") -> View:
    current = _current(visit)
    data = {"plan": None if current is None else current.told(), "fault": fault, "place": visit.namespace.name}
    return View(_TEMPLATE, "Import and export", data, status)


@screen.get("/topology", right="manage")
async def show(visit: Visit) -> View:
    """Export, import, and how far an import is."""
    return _page(visit)


# -- export -----------------------------------------------------------------------------------------------------


@screen.get("/topology/export", right="manage")
async def export(visit: Visit) -> web.Response:
    """All entities as a file; without keys."""
    is_config = visit.query.get("format") == "config"
    found = await read_topology(visit.namespace, with_keys=False)
    contents = to_config(found, NAMESPACE) if is_config else found
    headers = {"Content-Disposition": f'attachment; filename="{"Config" if is_config else "namespace"}.json"'}
    if is_config and with_parameters(found):
        # There is no place for the parameters of rules in this file; a person is told, and so is a program.
        headers["X-Duobus-Left-Out"] = f"parameters of {len(with_parameters(found))} rules"
    text = json.dumps(contents, indent=2, ensure_ascii=False) + "\n"
    return web.Response(text=text, content_type="application/json", headers=headers)


async def read_topology(namespace: NamespaceClient, *, with_keys: bool) -> dict[str, Any]:
    """Everything that a namespace has."""
    administration = namespace.administration
    async with namespace.telling("the entities of the namespace", _READ_S):
        queues = [entity_form("queue", one, with_keys=with_keys) async for one in administration.list_queues()]
        topics = []
        async for topic in administration.list_topics():
            form = entity_form("topic", topic, with_keys=with_keys)
            form["subscriptions"] = await read_subscriptions(administration, topic.name)
            topics.append(form)
    relays = None
    if namespace.is_duobus:
        query = {"keys": "true"} if with_keys else {}
        found = await namespace.operation("GET", "/$duobus/relays", query=query)
        relays = [relay_document(form) for form in found]
    return document(queues, topics, relays)


async def read_subscriptions(administration: Any, topic: str) -> list[dict[str, Any]]:
    """The subscriptions of a topic with their rules, as the document has them."""
    found = []
    async for one in administration.list_subscriptions(topic):
        form = entity_form("subscription", one, with_keys=False)
        rules = [rule_form(rule) async for rule in administration.list_rules(topic, one.name)]
        found.append(form | {"rules": sorted(rules, key=_lower_name)})
    return sorted(found, key=_lower_name)


def _lower_name(form: Mapping[str, Any]) -> str:
    return str(form["name"]).lower()


# -- import -----------------------------------------------------------------------------------------------------


@screen.post("/topology/plan", right="manage", file_max=DOCUMENT_BYTES_MAX)
async def plan(visit: Visit) -> Outcome:
    """Show what a document would change; nothing is changed."""
    file = visit.files.get("file")
    data = (b"" if file is None else file.read()) or visit.form.get("text", "").encode()
    if not data.strip():
        return _page(visit, HTTPStatus.UNPROCESSABLE_ENTITY, "Choose a file, or paste its text.")
    running = _current(visit)
    if running is not None and running.state == "running":
        raise Refusal(HTTPStatus.CONFLICT, "An import is under way: wait for its end.")
    source = visit.form.get("source", "").strip() or None
    current = _Import(data, source, prunes=visit.form.get("prune") == "true")
    try:
        # A large document takes a while, in which others have their turns.
        wanted = await asyncio.to_thread(current.wanted)
    except ConfigurationError as error:
        return _page(visit, HTTPStatus.UNPROCESSABLE_ENTITY, str(error).replace("--namespace", "the field Namespace"))
    current.records = [step.record() for step in await _steps(visit.namespace, current, wanted)]
    visit.session.memory[_MEMORY] = current
    return Redirect("/topology")


async def _steps(namespace: NamespaceClient, current: _Import, wanted: Mapping[str, Any]) -> list[Step]:
    present = await read_topology(namespace, with_keys=True)
    changes = TopologyChanges(present, wanted, prunes=current.prunes)
    return await asyncio.to_thread(lambda: list(changes.steps()))


@screen.post("/topology/discard", right="manage")
async def discard(visit: Visit) -> Redirect:
    """Forget the document."""
    current = _current(visit)
    if current is not None and current.state == "running":
        raise Refusal(HTTPStatus.CONFLICT, "An import is under way: wait for its end.")
    visit.session.memory.pop(_MEMORY, None)
    return Redirect("/topology")


@screen.post("/topology/apply", right="manage")
async def apply(visit: Visit) -> Redirect:
    """Make the changes that were shown, which delete nothing."""
    current = _planned(visit)
    if current.deletes():
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "This deletes entities: type the name of the namespace.")
    return await _begin(visit, current)


@screen.post("/topology/prune", right="manage", destructive=True)
async def prune(visit: Visit) -> Redirect:
    """Make the changes that were shown, and delete what the document does not have."""
    visit.confirmed(visit.namespace.name)
    return await _begin(visit, _planned(visit))


def _planned(visit: Visit) -> _Import:
    current = _current(visit)
    if current is None or current.state != "planned":
        raise Refusal(HTTPStatus.CONFLICT, "There is no plan (any more): show first what would change.")
    return current


async def _begin(visit: Visit, current: _Import) -> Redirect:
    steps = await _steps(visit.namespace, current, await asyncio.to_thread(current.wanted))
    if current.state != "planned":
        # Two forms of the same person were sent at once.
        raise Refusal(HTTPStatus.CONFLICT, "The import has begun already.")
    records = [step.record() for step in steps]
    if records != current.records:
        current.records = records
        return Redirect(
            "/topology",
            notice="Somebody has changed entities meanwhile. Look at what would change now.",
            kind="warning",
        )
    current.state, current.total = "running", len(steps)
    visit.session.start(_run(visit, current, steps), "console-import")
    return Redirect("/topology")


async def _run(visit: Visit, current: _Import, steps: list[Step]) -> None:
    try:
        for step in steps:
            await _made(visit.namespace, step)
            current.counts[step.operation] = current.counts.get(step.operation, 0) + 1
        current.state = "done"
    except NamespaceError as error:
        current.state, current.failure = "failed", error
    finally:
        if current.state == "running":
            current.state = "failed"
        forget_rows(visit)


async def _made(namespace: NamespaceClient, step: Step) -> None:
    what = f"{step.kind} {'/'.join(step.names)}"
    try:
        async with namespace.telling(what):
            if step.kind == RELAY and step.operation != CONFLICT:
                method, path, query, body = relay_request(step)
                await namespace.operation(method, f"/$duobus/{path}", query=query, body=body)
            else:
                await make(step, namespace.administration)
    except _NOT_MEANT as error:
        text = f"The document is wrong about {what}: {type(error).__name__} {error}."
        raise NamespaceError(HTTPStatus.UNPROCESSABLE_ENTITY, text) from error


async def make(step: Step, administration: Any) -> None:
    """Make a step; a conflict is none that can be made."""
    if step.operation == CONFLICT:
        return
    if step.operation == DELETE:
        await getattr(administration, f"delete_{step.kind}")(*step.names)
    elif step.kind == "rule":
        await _put_rule(step, administration)
    elif step.operation == CREATE:
        form = {name: value for name, value in step.form.items() if name not in FORWARDS}
        await getattr(administration, f"create_{step.kind}")(*step.names, **sdk_properties(step.kind, form))
    else:
        entity = await getattr(administration, f"get_{step.kind}")(*step.names)
        form = {name: step.form.get(name) for name in step.changes}
        for name, value in sdk_properties(step.kind, form).items():
            setattr(entity, name, value)
        await getattr(administration, f"update_{step.kind}")(*step.names[:-1], entity)


async def _put_rule(step: Step, administration: Any) -> None:
    parts = sdk_rule(step.form)
    if step.operation == CREATE:
        await administration.create_rule(*step.names, **parts)
        return
    rule = await administration.get_rule(*step.names)
    rule.filter, rule.action = parts["filter"], parts.get("action")
    await administration.update_rule(*step.names[:-1], rule)
