"""Reading XML from strangers: a small tree of elements, without document types, entities or unbounded depth.

Expat reads; whatever could make it work or remember more than the text is long (document types, and with them entities)
ends the parse at once. Depth and number of elements are bounded here, the length by whoever reads the request.
"""

from __future__ import annotations

from typing import Final
from xml.parsers import expat

from duobus.errors import ArgumentInvalid

ATOM: Final = "http://www.w3.org/2005/Atom"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"

#: Elements inside each other; a rule's parameter lies eight deep.
DEPTH_MAX: Final = 24
#: Elements of one document; a rule with the most parameters that its length lets it use has some hundreds.
ELEMENTS_MAX: Final = 10_000
#: Attributes, namespace declarations included, of one element; real ones have four.
ATTRIBUTES_MAX: Final = 32


class Element:
    """One element of a document.

    Attributes:
        namespace: URI, or empty.
        name: Local name.
        attributes: (namespace, local name) to value.
        children: Elements inside, in order.
        prefixes: Prefix to namespace as declared on this element itself.
        parent: The element around it, or None.
    """

    __slots__ = ("_parts", "attributes", "children", "name", "namespace", "parent", "prefixes")

    def __init__(self, namespace: str, name: str, parent: Element | None) -> None:
        self.namespace = namespace
        self.name = name
        self.parent = parent
        self.attributes: dict[tuple[str, str], str] = {}
        self.children: list[Element] = []
        self.prefixes: dict[str, str] = {}
        self._parts: list[str] = []

    def add_text(self, text: str) -> None:
        """Take a piece of the element's text."""
        self._parts.append(text)

    @property
    def text(self) -> str:
        """The text directly inside."""
        return "".join(self._parts)

    @property
    def is_nil(self) -> bool:
        """Whether it says ``i:nil="true"``, which is to be read as if it was not there."""
        return self.attributes.get((INSTANCE, "nil"), "").strip().lower() in {"true", "1"}

    @property
    def type_name(self) -> str | None:
        """Local part of ``i:type``, or None; .NET writes some of them as a plain attribute ``type``."""
        value = self.attributes.get((INSTANCE, "type")) or self.attributes.get(("", "type"))
        return None if value is None else value.strip().rpartition(":")[2]

    def find(self, name: str) -> Element | None:
        """The last child of this name that belongs to Service Bus (or to nothing) and is not nil."""
        found = None
        for child in self.children:
            if child.name == name and child.namespace in {SERVICE_BUS, ""} and not child.is_nil:
                found = child
        return found

    def text_of(self, name: str) -> str | None:
        """The text of a child, or None without one."""
        child = self.find(name)
        return None if child is None else child.text


def read_xml(data: bytes) -> Element:
    """Return the root element of a document.

    Raises:
        ArgumentInvalid: It is not well-formed, has a document type, or passes a bound.
    """
    return _Builder().read(data)


class _Builder:
    def __init__(self) -> None:
        self._root: Element | None = None
        self._current: Element | None = None
        self._depth = self._count = 0
        self._declared: dict[str, str] = {}

    def read(self, data: bytes) -> Element:
        # One of the encodings that expat has built in, so that no other part of Python decodes hostile text.
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._doctype
        parser.EntityDeclHandler = self._doctype
        parser.StartNamespaceDeclHandler = self._declare
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        try:
            parser.Parse(data, True)
        except expat.ExpatError as error:
            raise ArgumentInvalid(f"The body is no well-formed XML: {error}.") from None
        except (LookupError, UnicodeError):
            raise ArgumentInvalid("The body's XML is in an unknown encoding. Use UTF-8.") from None
        if self._root is None:
            raise ArgumentInvalid("The body holds no XML element.")
        return self._root

    def _doctype(self, *_: object) -> None:
        raise ArgumentInvalid("The body's XML has a document type or entities, which are not taken. Leave them out.")

    def _declare(self, prefix: str | None, uri: str | None) -> None:
        if len(self._declared) >= ATTRIBUTES_MAX:
            raise ArgumentInvalid(f"An element declares more than {ATTRIBUTES_MAX} namespaces.")
        self._declared[prefix or ""] = uri or ""

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        self._count += 1
        if self._depth > DEPTH_MAX or self._count > ELEMENTS_MAX or len(attributes) > ATTRIBUTES_MAX:
            raise ArgumentInvalid(
                f"The body's XML passes a bound: {DEPTH_MAX} elements inside each other, {ELEMENTS_MAX} in all, "
                f"{ATTRIBUTES_MAX} attributes of one."
            )
        element = Element(*_split(name), self._current)
        element.prefixes, self._declared = self._declared, {}
        element.attributes = {_split(key): value for key, value in attributes.items()}
        if self._current is None:
            self._root = element
        else:
            self._current.children.append(element)
        self._current = element

    def _end(self, name: str) -> None:
        self._depth -= 1
        if self._current is not None:
            self._current = self._current.parent

    def _text(self, text: str) -> None:
        if self._current is not None:
            self._current.add_text(text)


def _split(name: str) -> tuple[str, str]:
    namespace, _, local = name.rpartition(" ")
    return namespace, local
