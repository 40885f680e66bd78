"""What operators are told of servers and stores, and how they name servers. Pure."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Final

from duobus.errors import ArgumentInvalid
from duobus.model.address import whole_path
from duobus.storage.catalog.leases import NodeEntry, Table
from duobus.storage.catalog_rows import CatalogContents

#: States of a server: it takes stores; it has been told to give them away; it stops.
SERVING: Final = "serving"
DRAINED: Final = "drained"
STOPPING: Final = "stopping"
#: States of a store: a server holds its lease; nobody does, or the holder is not heard of.
HELD: Final = "held"
FREE: Final = "free"
#: States of a move of a fragment: it is being copied; what it has left behind is being deleted.
COPYING: Final = "copying"
CLEARING: Final = "clearing up"


def status_of(table: Table, contents: CatalogContents, own_id: str) -> dict[str, Any]:
    """Return servers and stores as JSON tells them; times are in milliseconds, by the clock of the database.

    Args:
        table: The table of leases, as it was seen last.
        contents: What the catalog held when it was read last; addresses of stores are without secrets.
        own_id: Of the server that tells.
    """
    places = {row.store_id: row.path for row in contents.stores}
    addresses = {node.node_id: node.http_address for node in table.nodes}
    holders = {
        lease.store_id: addresses.get(lease.node_id) if lease.node_id and not lease.is_over else None
        for lease in table.leases
    }
    displaced_stores = set(displaced(table))
    servers = [
        _server(node, table)
        | {"stores": [s for s, a in holders.items() if a == node.http_address]}
        | {"answersThis": node.node_id == own_id}
        for node in sorted(table.nodes, key=lambda node: node.http_address)
    ]
    stores = [
        {
            "store": lease.store_id,
            "place": places.get(lease.store_id, ""),
            "state": FREE if holders[lease.store_id] is None else HELD,
            "server": holders[lease.store_id],
            "sinceMs": None if holders[lease.store_id] is None else lease.since_ms,
            "leaseLeftMs": lease.left_ms,
            "term": lease.term,
            "preference": table.preferences.get(lease.store_id),
            "isDisplaced": lease.store_id in displaced_stores,
        }
        for lease in table.leases
    ]
    # Of a server that is drained and away nothing else is known.
    absent = [address for address in table.drained if address not in addresses.values()]
    return {"servers": servers, "stores": stores, "drainedAndAway": absent, "moves": _moves(contents)}


def _moves(contents: CatalogContents) -> list[dict[str, Any]]:
    """Fragments that are on their way, or have left something behind that is being deleted."""
    entities = {row.entity_id: row for row in contents.entities}
    found = []
    for move in contents.moves:
        row = entities.get(move.entity_id)
        home = next((s.store_id for s in row.slots if s.fragment_no == move.fragment_no), None) if row else None
        is_moving = home == move.from_store
        path = None if row is None else whole_path(row.path)
        where = {"from": move.from_store, "to": move.to_store if is_moving else None}
        state = COPYING if is_moving else CLEARING
        found.append({"entity": path, "fragment": move.fragment_no, **where, "state": state})
    return found


def _server(node: NodeEntry, table: Table) -> dict[str, Any]:
    details = node.details
    if node.http_address in table.drained or (details is not None and details.is_drained):
        state = DRAINED
    else:
        state = STOPPING if node.is_leaving else SERVING
    return {
        "server": node.http_address,
        "amqp": node.address,
        "state": state,
        "sinceMs": node.since_ms,
        "version": None if details is None else details.version,
        "weight": 1 if details is None else details.weight,
        "labels": [] if details is None else list(details.labels),
        "load": None if details is None else details.load,
    }


def displaced(table: Table) -> list[int]:
    """Return the stores that are at a server which their preference does not name, or at none."""
    nodes = {node.node_id: node for node in table.nodes}
    found = []
    for lease in table.leases:
        where = table.preferences.get(lease.store_id)
        if where is None:
            continue
        node = nodes.get(lease.node_id or "")
        fits = node is not None and (
            node.http_address == where or (node.details is not None and where in node.details.labels)
        )
        if lease.is_over or not fits:
            found.append(lease.store_id)
    return found


def server_named(table: Table, name: str) -> str:
    """Return the HTTP address of the server that an operator names by that address, its AMQP address or its host.

    Raises:
        ArgumentInvalid: No server that is alive is called so, or several are.
    """
    found = {
        node.http_address
        for node in table.nodes
        if name.lower() in (node.http_address.lower(), node.address.lower(), _host(node.http_address).lower())
    }
    if len(found) == 1:
        return found.pop()
    known = sorted({node.http_address for node in table.nodes})
    if found:
        raise ArgumentInvalid(f"{name!r} names several servers: {', '.join(sorted(found))}. Give host and port.")
    near = get_close_matches(name, known, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ArgumentInvalid(f"There is no server {name!r} now.{hint} The servers are {', '.join(known)}.")


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")
