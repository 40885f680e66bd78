"""What is unwell in a namespace, worst first, in sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from duobus.console.formats import count, entity_url, short_duration
from duobus.console.observation.readings import Reading

if TYPE_CHECKING:
    from duobus.console.observation.failovers import PairState

#: Findings of one kind that are told one by one; the rest is told as a number.
_NAMED_MAX: Final = 5
#: Share of the room for incoming messages from which on senders will soon have to wait.
_INCOMING_HIGH: Final = 0.8
#: How far the clock may be from broker time: slewing brings a second back in seven minutes.
_CLOCK_APART_MS: Final = 60_000
#: How far two clocks may differ before tokens, which are good for minutes, are in danger.
_CLOCKS_APART_MS: Final = 60_000
#: For how long a start of the server is worth a line.
_NEW_MS: Final = 10 * 60_000
#: From so many days before its end on, a certificate is worth a warning.
_WARNED_DAYS: Final = 14
_DAY_MS: Final = 86_400_000
_BACKLOG: Final = re.compile(r"(?i)(.+)/x-servicebus-transfer/(\d{1,9})")

#: The words of links to pages that only a key with the right Manage opens.
SEE_CLUSTER: Final = "See the cluster"
SEE_STORE: Final = "Look at the store"
SEE_CERTIFICATE: Final = "See the certificate"
SEE_PAIR: Final = "See the pair"

BAD: Final = "bad"
WARNING: Final = "warning"
INFO: Final = "info"
_ORDER: Final = {BAD: 0, WARNING: 1, INFO: 2}


class Finding(NamedTuple):
    """Something that a person should know.

    Attributes:
        kind: ``bad``, ``warning`` or ``info``.
        title: What it is, in a few words.
        text: A sentence.
        url: Where to go; empty for nowhere.
        link: What the link says.
    """

    kind: str
    title: str
    text: str
    url: str = ""
    link: str = ""


def findings(reading: Reading, errors: Mapping[str, int], dead_before: int | None, growing: str) -> list[Finding]:
    """What is unwell, worst first.

    Args:
        reading: The latest look.
        errors: Errors that clients got between the last two looks, by condition.
        dead_before: How many dead letters there were ten minutes ago, or as early as is known.
        growing: Path of the entity whose dead letters grew most since then; empty when nobody knows.
    """
    found = [
        *_of_stores(reading),
        *_of_cluster(reading.cluster),
        *_of_entities(reading),
        *_of_dead_letters(reading, dead_before, growing),
        *_of_server(reading.server),
        *_of_certificate(reading),
        *_of_clocks(reading.apart_ms),
        *_of_errors(errors),
        *(finding for state in reading.failovers for finding in of_failovers(state)),
        *_of_backlogs(reading),
    ]
    return worst_first(found)


def worst_first(found: Iterable[Finding]) -> list[Finding]:
    """Findings in the order in which a person should read them."""
    return sorted(found, key=lambda finding: _ORDER[finding.kind])


def _of_stores(reading: Reading) -> list[Finding]:
    stores = reading.stores or ()
    away = [store for store in stores if store["state"] != "open"]
    found = [
        Finding(
            BAD if store["state"] != "opening" else WARNING,
            f"Store {store['store']} is {store['state']}",
            store_reason(store),
            f"/stores/{store['store']}",
            SEE_STORE,
        )
        for store in away[:_NAMED_MAX]
    ]
    if len(away) > _NAMED_MAX:
        found.append(Finding(BAD, f"{len(away) - _NAMED_MAX} more stores are away", "", "/stores", "See all stores"))
    for store in stores:
        if store["state"] == "open" and store.get("drill") not in (None, "healthy"):
            text = f"A drill is under way: the store is {store['drill']}."
            found.append(
                Finding(WARNING, f"Drill of store {store['store']}", text, f"/stores/{store['store']}", "End the drill")
            )
        if store.get("quarantined"):
            text = f"{count(store['quarantined'])} damaged messages were put aside. The log of the server names them."
            found.append(Finding(BAD, f"Damaged messages in store {store['store']}", text, "/stores", "See the store"))
    return found


def _of_cluster(cluster: Mapping[str, Any] | None) -> list[Finding]:
    """Stores that no server has or that are not where they are to be, and servers that are to have none."""
    if cluster is None:
        return []
    found = []
    free = [one["store"] for one in cluster["stores"] if one["state"] != "held"]
    if free:
        text = "What is in them cannot be reached until a server takes them."
        found.append(Finding(BAD, f"No server has {_stores_named(free)}", text, "/cluster", SEE_CLUSTER))
    moved = [one["store"] for one in cluster["stores"] if one["isDisplaced"] and one["state"] == "held"]
    if moved:
        text = "The server that was asked for is away, is drained, or has not taken over yet."
        verb = "is" if len(moved) == 1 else "are"
        title = f"{_stores_named(moved).capitalize()} {verb} not where asked for"
        found.append(Finding(WARNING, title, text, "/cluster", SEE_CLUSTER))
    for one in cluster["servers"]:
        if one["state"] == "drained" and one["stores"]:
            text = (
                f"The server is drained and still has {_stores_named(one['stores'])}: no other server takes stores now."
            )
            found.append(Finding(WARNING, f"{one['server']} is not empty yet", text, "/cluster", SEE_CLUSTER))
        elif one["state"] != "serving":
            text = "It has no stores, and takes none until the drain ends."
            if one["state"] != "drained":
                text = "It gives its stores to the others."
            found.append(Finding(INFO, f"{one['server']} is {one['state']}", text, "/cluster", SEE_CLUSTER))
    if cluster["drainedAndAway"]:
        text = f"Drained, and away: {', '.join(cluster['drainedAndAway'])}."
        found.append(Finding(INFO, "A drained server is away", text, "/cluster", SEE_CLUSTER))
    versions = sorted({one["version"] or "unknown" for one in cluster["servers"]})
    if len(versions) > 1:
        text = f"The servers have different versions: {', '.join(versions)}."
        found.append(Finding(INFO, "An upgrade is under way", text, "/cluster", SEE_CLUSTER))
    return found


def _stores_named(numbers: list[int]) -> str:
    named = ", ".join(map(str, numbers[:_NAMED_MAX])) + (", …" if len(numbers) > _NAMED_MAX else "")
    return f"store {named}" if len(numbers) == 1 else f"stores {named}"


def store_reason(store: Mapping[str, Any]) -> str:
    """Why a store is not open, in a sentence."""
    reason = str(store.get("reason") or "The server told no reason")
    if store.get("drill") not in (None, "healthy"):
        reason = f"A drill is under way ({store['drill']}): {reason}"
    return reason if reason.endswith((".", "!", "?")) else f"{reason}."


def _of_entities(reading: Reading) -> list[Finding]:
    away = sorted(path for path, counts in reading.entities.items() if not counts.is_available)
    if not away:
        return []
    names = ", ".join(away[:_NAMED_MAX]) + (", …" if len(away) > _NAMED_MAX else "")
    title = "1 entity is partly away" if len(away) == 1 else f"{count(len(away))} entities are partly away"
    return [Finding(BAD, title, f"A store of theirs is away: {names}.", "/stores", "See the stores")]


def _of_dead_letters(reading: Reading, before: int | None, growing: str) -> list[Finding]:
    dead = reading.total("dead") or 0
    if before is None or dead <= before:
        return []
    where = f" Most of them are in {growing}." if growing else ""
    url = entity_url(growing, "messages", place="deadletter") if growing else ""
    text = f"{count(dead - before)} more in the last ten minutes, {count(dead)} in all.{where}"
    return [Finding(BAD, "Dead letters are growing", text, url, "Look at them" if url else "")]


def _of_server(server: Mapping[str, Any]) -> list[Finding]:
    found = []
    ahead_ms = server.get("clockAheadMs")
    if ahead_ms is not None and abs(ahead_ms) > _CLOCK_APART_MS:
        text = (
            f"The clock of the server is {short_duration(abs(ahead_ms))} {'ahead of' if ahead_ms > 0 else 'behind'} "
            "broker time, by which messages expire and locks end."
        )
        found.append(Finding(WARNING, "The server doubts its clock", text))
    limit = server.get("incomingLimitBytes") or 0
    share = (server.get("incomingBytes") or 0) / limit if limit else 0.0
    if share > _INCOMING_HIGH:
        text = f"{share:.0%} of the memory for incoming messages is taken: the stores are slower than the senders."
        found.append(Finding(WARNING, "Memory for messages is near its limit", text))
    if server and server.get("uptimeMs", _NEW_MS) < _NEW_MS:
        text = "That was less than ten minutes ago. Its counts of sent and received messages begin there."
        found.append(Finding(INFO, "The server was started", text))
    return found


def _of_certificate(reading: Reading) -> list[Finding]:
    certificate = certificate_of(reading.server.get("certificate"), reading.at_ms)
    if certificate is None or not certificate["ends_soon"]:
        return []
    days = certificate["days"]
    when = "today" if days == 0 else "in 1 day" if days == 1 else f"in {days} days"
    title = "The certificate has ended" if certificate["is_over"] else f"The certificate ends {when}"
    text = f"Clients that connect over TLS refuse {certificate['subject']} after its end. Replace its files."
    return [Finding(BAD if certificate["is_over"] else WARNING, title, text, "/access", SEE_CERTIFICATE)]


def _of_clocks(apart_ms: int) -> list[Finding]:
    if abs(apart_ms) <= _CLOCKS_APART_MS:
        return []
    side = "ahead of" if apart_ms > 0 else "behind"
    apart = short_duration(abs(apart_ms) // 60_000 * 60_000)
    text = f"The clock of the server is {apart} {side} that of the console: tokens may be refused."
    return [Finding(WARNING, "Two clocks differ", text)]


def _of_errors(errors: Mapping[str, int]) -> list[Finding]:
    those = {name: number for name, number in errors.items() if number > 0}
    if not those:
        return []
    worst = sorted(those.items(), key=lambda pair: (-pair[1], pair[0]))
    names = ", ".join(f"{name} ({count(number)})" for name, number in worst[:_NAMED_MAX])
    return [
        Finding(INFO, "Clients got errors", f"Since the last look: {names}.", "/connections", "See who is connected")
    ]


def of_failovers(pair: PairState) -> list[Finding]:
    """What the clients of a pair report as not healthy, and a secondary that does not tell."""
    if pair.failure:
        text = f"The secondary was asked what the clients of the pair report. {pair.failure}"
        return [Finding(WARNING, f"Nobody knows the failovers of {pair.primary}", text, "/pairs", SEE_PAIR)]
    found = []
    entities = [] if pair.states is None else pair.states["entities"]
    for kind, state, title in ((BAD, "failed_over", "have failed over"), (WARNING, "suspect", "are suspect")):
        those = [one for one in entities if one[state] and (state == "failed_over" or not one["failed_over"])]
        if not those or pair.states is None:
            continue
        clients = pair.states["clients"]
        names = ", ".join(f"{_keys_of(one)} ({one[state]} of {clients} clients)" for one in those[:_NAMED_MAX])
        names += ", …" if len(those) > _NAMED_MAX or pair.states["left_out"] else ""
        text = (
            f"Clients send to the backlog queues in place of {pair.primary}: {names}."
            if state == "failed_over"
            else f"Sending has failed, and clients have not yet given up {pair.primary}: {names}."
        )
        found.append(Finding(kind, f"Entities of {pair.primary} {title}", text, "/pairs", SEE_PAIR))
    return found


def _keys_of(one: Mapping[str, Any]) -> str:
    return f"{one['entity']}, keys of fragment {one['fragment']}" if one["fragment"] else str(one["entity"])


def _of_backlogs(reading: Reading) -> list[Finding]:
    waiting: dict[str, int] = {}
    for path, counts in reading.entities.items():
        found = _BACKLOG.fullmatch(path)
        if found is not None and counts.active:
            waiting[found[1]] = waiting.get(found[1], 0) + counts.active
    return [
        Finding(
            WARNING,
            f"Backlog of {primary}",
            f"{count(number)} messages wait here for the namespace {primary}.",
            "/pairs",
            SEE_PAIR,
        )
        for primary, number in sorted(waiting.items())[:_NAMED_MAX]
    ]


def errors_between(before: Reading | None, after: Reading) -> dict[str, int]:
    """Errors that clients got between two looks, by condition; after a restart, all since the start."""
    now = {str(name): int(number) for name, number in (after.server.get("errors") or {}).items()}
    if before is None:
        return {}
    was = before.server.get("errors") or {} if before.started_ms == after.started_ms else {}
    return {name: more for name, number in now.items() if (more := number - int(was.get(name, 0))) > 0}


def most_grown(before: Mapping[str, int], reading: Reading) -> str:
    """Path of the entity whose dead letters grew most; empty when none did."""
    grown = {path: counts.dead - before.get(path, 0) for path, counts in reading.entities.items() if counts.dead}
    path = max(grown, key=lambda one: (grown[one], one), default="")
    return path if path and grown[path] > 0 else ""


def certificate_of(told: Mapping[str, Any] | None, now_ms: int) -> dict[str, Any] | None:
    """What a page shows of a certificate; None where the server has none, or tells none.

    Args:
        told: ``certificate`` of what ``/$duobus/server`` tells.
        now_ms: The time by which the days are counted.
    """
    if not told:
        return None
    days = _days_left(told, now_ms)
    return {
        "subject": told["subject"],
        "issuer": told["issuer"],
        "names": told["names"],
        "begin_ms": told["beginMs"],
        "end_ms": told["endMs"],
        "days": days,
        "is_over": days < 0,
        "ends_soon": days < _WARNED_DAYS,
    }


def _days_left(told: Mapping[str, Any], now_ms: int) -> int:
    """Whole days until the end of a certificate; negative after the end."""
    return int((told["endMs"] - now_ms) // _DAY_MS)
