"""JSON Patch (RFC 6902): a list of changes to a JSON document, done together or not at all."""

from __future__ import annotations

import copy
from typing import Any, Final

from duobus.errors import ArgumentInvalid

#: Operations of one patch.
OPERATIONS_MAX: Final = 100
#: Steps of one pointer.
STEPS_MAX: Final = 64

_VERBS: Final = ("add", "remove", "replace", "move", "copy", "test")


class Operation:
    """One checked operation; ``source`` is where move and copy take from."""

    __slots__ = ("path", "source", "value", "verb")

    def __init__(self, verb: str, path: tuple[str, ...], source: tuple[str, ...] | None, value: Any) -> None:
        self.verb = verb
        self.path = path
        self.source = source
        self.value = value


def parse_patch(patch: Any) -> list[Operation]:
    """Check a patch.

    Raises:
        ArgumentInvalid: It is none; the text names the first wrong operation.
    """
    if not isinstance(patch, list) or len(patch) > OPERATIONS_MAX:
        raise ArgumentInvalid(f"A JSON patch is a list of at most {OPERATIONS_MAX} operations.")
    return [_operation(index, item) for index, item in enumerate(patch)]


def _operation(index: int, item: Any) -> Operation:
    if not isinstance(item, dict) or item.get("op") not in _VERBS:
        raise ArgumentInvalid(f"Operation {index} of the patch needs an 'op' out of {', '.join(_VERBS)}.")
    verb = item["op"]
    if verb in ("add", "replace", "test") and "value" not in item:
        raise ArgumentInvalid(f"Operation {index} of the patch needs a 'value'.")
    source = _pointer(index, item.get("from")) if verb in ("move", "copy") else None
    path = _pointer(index, item.get("path"))
    if verb == "move" and source is not None and path[: len(source)] == source and path != source:
        raise ArgumentInvalid(f"Operation {index} of the patch moves a value into itself.")
    return Operation(verb, path, source, item.get("value"))


def _pointer(index: int, text: Any) -> tuple[str, ...]:
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise ArgumentInvalid(f"Operation {index} of the patch needs a pointer like /items/0/price.")
    steps = tuple(step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:])
    if len(steps) > STEPS_MAX:
        raise ArgumentInvalid(f"A pointer of the patch has more than {STEPS_MAX} steps.")
    return steps


def patched(document: Any, patch: list[Operation]) -> Any:
    """Return the document with the changes made; the one that is given stays as it is.

    Raises:
        ArgumentInvalid: An operation cannot be done.
    """
    document = copy.deepcopy(document)
    for operation in patch:
        document = _done(document, operation)
    return document


def _done(document: Any, operation: Operation) -> Any:
    verb, path = operation.verb, operation.path
    if verb == "test":
        if not _equal(_get(document, path), operation.value):
            raise ArgumentInvalid(f"The test of {_text(path)} failed.")
        return document
    if verb == "remove":
        return _remove(document, path)
    if verb == "replace":
        _get(document, path)
        return _put(document, path, copy.deepcopy(operation.value), inserts=False)
    value = operation.value
    if operation.source is not None:
        value = _get(document, operation.source)
        if verb == "move":
            document = _remove(document, operation.source)
    return _put(document, path, copy.deepcopy(value), inserts=True)


def _equal(one: Any, other: Any) -> bool:
    # True is no 1 in JSON.
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _get(document: Any, path: tuple[str, ...]) -> Any:
    for depth, step in enumerate(path):
        if isinstance(document, dict) and step in document:
            document = document[step]
        elif isinstance(document, list):
            document = document[_index(step, len(document) - 1, path)]
        else:
            raise ArgumentInvalid(f"There is no {_text(path[: depth + 1])}.")
    return document


def _put(document: Any, path: tuple[str, ...], value: Any, *, inserts: bool) -> Any:
    if not path:
        return value
    parent = _get(document, path[:-1])
    if isinstance(parent, dict):
        parent[path[-1]] = value
    elif isinstance(parent, list):
        if inserts:
            end = len(parent)
            parent.insert(end if path[-1] == "-" else _index(path[-1], end, path), value)
        else:
            parent[_index(path[-1], len(parent) - 1, path)] = value
    else:
        raise ArgumentInvalid(f"{_text(path[:-1])} is neither an object nor a list.")
    return document


def _remove(document: Any, path: tuple[str, ...]) -> Any:
    _get(document, path)
    if not path:
        return None
    parent = _get(document, path[:-1])
    if isinstance(parent, list):
        del parent[int(path[-1])]
    else:
        del parent[path[-1]]
    return document


def _index(step: str, last: int, path: tuple[str, ...]) -> int:
    is_number = step.isascii() and step.isdigit() and len(step) < 10 and (step == "0" or step[0] != "0")
    if not is_number or int(step) > last:
        raise ArgumentInvalid(f"There is no {_text(path)}.")
    return int(step)


def _text(path: tuple[str, ...]) -> str:
    return repr("/" + "/".join(path))[:200]
