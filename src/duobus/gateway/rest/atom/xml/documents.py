"""Atom documents: entries, feeds and errors, in the exact form that all clients read (Azure: Service Bus REST API)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from duobus.errors import ArgumentInvalid
from duobus.gateway.rest.atom.xml import writer as xml
from duobus.gateway.rest.atom.xml.reader import ATOM, INSTANCE, SERVICE_BUS, Element, read_xml

ENTRY_TYPE: Final = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE: Final = "application/atom+xml;type=feed;charset=utf-8"
ERROR_TYPE: Final = "application/xml; charset=utf-8"

QUEUE: Final = "QueueDescription"
TOPIC: Final = "TopicDescription"
SUBSCRIPTION: Final = "SubscriptionDescription"
RULE: Final = "RuleDescription"
NAMESPACE: Final = "NamespaceInfo"


def read_entry(data: bytes) -> Element:
    """Return the description in the body of a request: the first element inside of ``content``.

    Raises:
        ArgumentInvalid: The body is no Atom entry with one.
    """
    root = read_xml(data)
    contents = [child for child in root.children if child.name == "content" and child.namespace in {ATOM, ""}]
    if root.name != "entry" or not contents or not contents[0].children:
        raise ArgumentInvalid("The body must be an Atom entry whose content is a description.")
    return contents[0].children[0]


def entry(kind: str, inside: str, *, url: str, title: str, author: str, created_at_ms: int, updated_at_ms: int) -> str:
    """Return an entry around the elements of a description; no white space between elements."""
    address = xml.escape(url)
    return (
        f'<entry xmlns="{ATOM}"><id>{address}</id><title type="text">{xml.escape(title)}</title>'
        f"{xml.instant('published', created_at_ms)}{xml.instant('updated', updated_at_ms)}"
        f"<author>{xml.element('name', author)}</author>"
        f'<link rel="self" href="{address}"/>'
        f'<content type="application/xml"><{kind} xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">{inside}</{kind}>'
        "</content></entry>"
    )


def feed(title: str, entries: Sequence[str], *, url: str, following: str | None, updated_at_ms: int) -> str:
    """Return a page. Exactly two links when a page follows, ``self`` first; else ``self`` alone (rule 0.6)."""
    address = xml.escape(url)
    more = "" if following is None else f'<link rel="next" href="{xml.escape(following)}"/>'
    return (
        f'<feed xmlns="{ATOM}"><title type="text">{xml.escape(title)}</title><id>{address}</id>'
        f"{xml.instant('updated', updated_at_ms)}"
        f'<link rel="self" href="{address}"/>{more}{"".join(entries)}</feed>'
    )


def error_body(status: int, detail: str) -> str:
    """Return the body of every failure."""
    return f"<Error><Code>{status}</Code>{xml.element('Detail', detail)}</Error>"


def namespace_info(name: str, sku: str, created_at_ms: int) -> str:
    """Return the elements of ``NamespaceInfo``, in the cloud's order."""
    units = xml.number("MessagingUnits", 1) if sku == "Premium" else ""
    return (
        xml.element("Alias", name)
        + xml.instant("CreatedTime", created_at_ms)
        + xml.element("MessagingSKU", sku)
        + units
        + xml.instant("ModifiedTime", created_at_ms)
        + xml.element("Name", name)
        + xml.element("NamespaceType", "Messaging")
    )
