"""Actions: SET and REMOVE on one copy of a message, giving an overlay (Azure: SQL rule action syntax)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from duobus.codec import EncodeError, Symbol, encode
from duobus.codec.sections import FRONT_SIZE_MAX, PROPERTY_SIZE_MAX
from duobus.model.overlay import Overlay
from duobus.rules.effort import LongTexts
from duobus.rules.language.compiler import Compiler, Run
from duobus.rules.language.operators import kind_of
from duobus.rules.language.parser import at, parse_action
from duobus.rules.language.tree import Property, RemoveStatement, SetStatement
from duobus.rules.like import SHORT, STEP
from duobus.rules.message_view import MessageView, index_names, values_of
from duobus.rules.system_properties import (
    APPLICATION_SECTION,
    CONTENT_TYPE,
    COUNT,
    ENVELOPE,
    FIELDS,
    FORCE_PERSISTENCE,
    ID_LENGTH_MAX,
    IDS,
    PARTITION_KEY,
    PROPERTIES_SECTION,
    SCHEDULED_TIME,
    SESSION_ID,
    TIME_TO_LIVE,
    VIA_PARTITION_KEY,
    WRITABLE,
)
from duobus.rules.values import (
    INT64_HIGHEST,
    TICKS_PER_MS,
    TICKS_PER_SECOND,
    DateTime,
    EvaluationError,
    TimeSpan,
    from_amqp,
    to_amqp,
)

#: User property that tells which rule made a copy.
RULE_NAME: Final = "RuleName"

_ALL_SECTIONS: Final = PROPERTIES_SECTION | APPLICATION_SECTION | ENVELOPE

Step = Callable[["Draft"], None]

#: Up to so many properties a draft costs what an action costs; beyond, each of them counts (``duobus.rules.effort``),
#: and more where all names are put into lower case. A value that is set is encoded, kept and written once more.
_FEW_PROPERTIES: Final = 64
_PROPERTY_COST: Final = 100
_REMOVAL_COST: Final = 400
_VALUE_TIMES: Final = 4
#: Of each byte of all properties, when the copy has to be made to learn its size.
_REWRITE_COST: Final = 150
#: Looks at all of a long text that an action costs at most, about, and that each of its statements does.
_STATEMENT_STRAIN: Final = 80
_STRAIN: Final = 200


class Draft:
    """A copy while statements change it; expressions read it as they read a MessageView.

    Attributes:
        system: As of a MessageView, changed.
        user: As of a MessageView, changed.
        raw: The application properties with their AMQP types, changed.
        changed: Names in ``raw`` that were set.
        removed: Names that the message has and ``raw`` no longer.
        places: Places of system properties that were set or removed.
        new_id: As of a MessageView.
    """

    __slots__ = ("_message", "_original", "changed", "new_id", "places", "raw", "removed", "system", "user")

    def __init__(self, message: MessageView) -> None:
        self._message = message
        self.raw = message.raw()
        if len(self.raw) > _FEW_PROPERTIES:
            message.texts.spend(STEP + _PROPERTY_COST * len(self.raw))
        self._original = frozenset(self.raw)
        self.system = list(message.system)
        self.user = dict(message.user)
        self.new_id = message.new_id
        self.changed: set[str] = set()
        self.removed: set[str] = set()
        self.places: set[int] = set()

    @property
    def texts(self) -> LongTexts:
        """As of a MessageView."""
        return self._message.texts

    def _note_value(self, value: Any) -> None:
        """A value that is kept beside the message is written there."""
        if type(value) in (str, bytes) and len(value) > SHORT:
            self.texts.spend(STEP + _VALUE_TIMES * len(value))

    def _name(self, name: str) -> str | None:
        """Return the name that the message has a property under: the exact one, or one that differs only in case."""
        if name in self.raw:
            return name
        low = name.lower()
        if low not in self.user:
            return None
        return next(present for present in self.raw if present.lower() == low)

    def set_user(self, name: str, value: Any) -> None:
        """Create or replace a user property."""
        self._note_value(value)
        present = self._name(name)
        self.changed.add(present or name)
        self.removed.discard(present or name)
        if present is None:
            # Nothing that differs only in case is there.
            self.raw[name] = to_amqp(value)
            self.user[name] = self.user[name.lower()] = from_amqp(self.raw[name])
        else:
            self.raw[present] = to_amqp(value, self.raw[present])
            self._reindex(present)

    def remove_user(self, name: str) -> None:
        """Remove a user property, if it is there."""
        present = self._name(name)
        if present is None:
            return
        if len(self.raw) > _FEW_PROPERTIES:
            self.texts.spend(STEP + _REMOVAL_COST * len(self.raw))
        del self.raw[present]
        self.changed.discard(present)
        if present in self._original:
            self.removed.add(present)
        self.user = index_names(values_of(self.raw))

    def _reindex(self, name: str) -> None:
        low = name.lower()
        value = from_amqp(self.raw[name])
        self.user[name] = value
        if low != name and low not in self.raw:
            if len(self.raw) > _FEW_PROPERTIES:
                self.texts.spend(STEP + _REMOVAL_COST * len(self.raw))
            first = next(present for present in self.raw if present.lower() == low)
            if first == name:
                self.user[low] = value

    def overlay(self) -> Overlay:
        """Return all changes."""
        properties: dict[int, Any] = {}
        envelope: dict[str, Any] = {}
        for place in sorted(self.places):
            value = self.system[place]
            if place in FIELDS:
                properties[FIELDS[place]] = Symbol(value) if place == CONTENT_TYPE and value is not None else value
            if place in _ENVELOPE:
                member, convert = _ENVELOPE[place]
                envelope[member] = None if value is None else convert(value)
        return Overlay(
            properties, {name: self.raw[name] for name in sorted(self.changed)}, tuple(sorted(self.removed)), envelope
        )


def _whole_ms(value: DateTime | TimeSpan) -> int:
    return value.ticks // TICKS_PER_MS


#: Place to member of Special, and how the value gets there.
_ENVELOPE: Final[dict[int, tuple[str, Callable[[Any], Any]]]] = {
    SESSION_ID: ("session_id", str),
    PARTITION_KEY: ("partition_key", str),
    VIA_PARTITION_KEY: ("via_partition_key", str),
    SCHEDULED_TIME: ("scheduled_ms", _whole_ms),
    TIME_TO_LIVE: ("ttl_ms", _whole_ms),
}


# -- system properties ------------------------------------------------------------------------------------------------


def _as_text(name: str, value: Any) -> str:
    if type(value) is uuid.UUID:
        return str(value)
    if type(value) is not str:
        raise EvaluationError(f"sys.{name} takes a string, not {kind_of(value)}")
    return value


def _as_id(name: str, value: Any) -> str:
    text = _as_text(name, value)
    if len(text) > ID_LENGTH_MAX:
        raise EvaluationError(f"sys.{name} would have {len(text)} characters; at most {ID_LENGTH_MAX} are allowed")
    return text


def _as_ascii(name: str, value: Any) -> str:
    # A symbol on the wire.
    text = _as_text(name, value)
    if not text.isascii():
        raise EvaluationError(f"sys.{name} takes ASCII characters only")
    return text


def _as_date(name: str, value: Any) -> DateTime:
    if type(value) is not DateTime:
        raise EvaluationError(f"sys.{name} takes a date, not {kind_of(value)}")
    return value


def _as_life(name: str, value: Any) -> TimeSpan:
    if type(value) in (int, float):
        if not 0 < value < INT64_HIGHEST // TICKS_PER_SECOND:
            raise EvaluationError(f"sys.{name} takes a positive number of seconds")
        value = TimeSpan(int(value * TICKS_PER_SECOND))
    if type(value) is not TimeSpan:
        raise EvaluationError(f"sys.{name} takes a time span or a number of seconds, not {kind_of(value)}")
    if value.ticks < TICKS_PER_MS:
        raise EvaluationError(f"sys.{name} takes a positive time span, of a millisecond at least")
    return value


def _as_flag(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise EvaluationError(f"sys.{name} takes a boolean, not {kind_of(value)}")
    return value


def _converter(place: int) -> Callable[[str, Any], Any]:
    metadata = {
        CONTENT_TYPE: _as_ascii,
        FORCE_PERSISTENCE: _as_flag,
        SCHEDULED_TIME: _as_date,
        TIME_TO_LIVE: _as_life,
    }
    return metadata.get(place, _as_id if place in IDS else _as_text)


_CONVERTERS: Final = tuple(_converter(place) for place in range(COUNT))


# -- statements -------------------------------------------------------------------------------------------------------


def _writable_place(target: Property) -> int:
    place = Compiler.place(target)
    if place not in WRITABLE:
        raise at(target.position, f"'sys.{target.name}' is the broker's to give; an action cannot change it")
    return place


def _set_system(target: Property, run: Run) -> Step:
    place, name = _writable_place(target), target.name
    convert = _CONVERTERS[place]

    def step(draft: Draft) -> None:
        value = run(draft)
        draft.system[place] = None if value is None else convert(name, value)
        draft.places.add(place)

    return step


def _set_user(name: str, run: Run) -> Step:
    return lambda draft: draft.set_user(name, run(draft))


def _remove_system(target: Property) -> Step:
    place = _writable_place(target)

    def step(draft: Draft) -> None:
        draft.system[place] = None
        draft.places.add(place)

    return step


def _remove_user(name: str) -> Step:
    return lambda draft: draft.remove_user(name)


def _step(statement: SetStatement | RemoveStatement, compiler: Compiler) -> Step:
    target = statement.property
    if isinstance(statement, RemoveStatement):
        return _remove_system(target) if target.is_system else _remove_user(target.name)
    run = compiler.value(statement.value).run
    return _set_system(target, run) if target.is_system else _set_user(target.name, run)


class Action:
    """A compiled action.

    Attributes:
        sections: What it needs decoded: everything, since its result is checked as a whole.
        strain: As of a compiled filter.
    """

    __slots__ = ("_rule_name", "_steps", "sections", "strain")

    def __init__(self, text: str, parameters: Mapping[str, Any], rule_name: str) -> None:
        compiler = Compiler(parameters)
        statements = parse_action(text)
        self._steps = tuple(_step(statement, compiler) for statement in statements)
        self.strain = _STRAIN + _STATEMENT_STRAIN * len(statements)
        self._rule_name = rule_name
        self.sections = _ALL_SECTIONS

    def apply(self, message: MessageView) -> Overlay:
        """Return what the action changes on this message, ``RuleName`` included.

        Raises:
            EvaluationError: An expression failed, or the result is beyond a limit.
        """
        draft = Draft(message)
        for step in self._steps:
            step(draft)
        draft.set_user(RULE_NAME, self._rule_name)
        session_id, partition_key = draft.system[SESSION_ID], draft.system[PARTITION_KEY]
        if None not in (session_id, partition_key) and session_id != partition_key and draft.places & _KEYS:
            raise EvaluationError("sys.SessionId and sys.PartitionKey must be equal when both are given")
        overlay = draft.overlay()
        _check_size(message, overlay)
        return overlay


_KEYS: Final = frozenset((SESSION_ID, PARTITION_KEY))


def _check_size(message: MessageView, overlay: Overlay) -> None:
    """Hold the copy to the limits of a message that is sent (Azure: quotas)."""
    added = 0
    try:
        for name, value in overlay.application.items():
            size = len(encode(value))
            if size > PROPERTY_SIZE_MAX:
                raise EvaluationError(
                    f"the property {name[:64]!r} would have {size} bytes; at most {PROPERTY_SIZE_MAX}"
                )
            added += size + len(encode(name))
        for value in overlay.properties.values():
            added += len(encode(value))
    except EncodeError as error:
        raise EvaluationError(f"a new value cannot be written: {error}") from None
    # What is replaced is counted as well at first; only a message near the limit is looked at properly.
    front = message.front_size()
    if front + added <= FRONT_SIZE_MAX:
        return
    message.texts.spend(_REWRITE_COST * front)
    size = front + len(overlay.apply_to(message.payload)) - len(message.payload)
    if size > FRONT_SIZE_MAX:
        raise EvaluationError(f"the properties would have {size} bytes; at most {FRONT_SIZE_MAX} are allowed")
