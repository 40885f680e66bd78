"""Selection: which messages of a sub-queue somebody means, by an SQL filter and by a condition on a JSON body.

The filter is that of a subscription's rule, and sees a message as a receiver would: with what was laid over it, the
reasons of a dead letter among its properties, and its delivery count.
"""

from __future__ import annotations

import uuid
from typing import Final

from duobus.codec import DecodeError, decode, split_batch
from duobus.codec.sections import DATA, VALUE, find_section
from duobus.model.descriptions import RuleDescription
from duobus.model.json.messages import DESCRIPTION, REASON, merged
from duobus.model.metadata import MessageMetadata
from duobus.model.overlay import Overlay
from duobus.rules.effort import EffortExceeded
from duobus.rules.language.json_path import JsonCondition
from duobus.rules.message_view import MessageView
from duobus.rules.rule import SQL, Rule, compile_rule
from duobus.rules.system_properties import DELIVERY_COUNT, ENVELOPE
from duobus.rules.values import EvaluationError

_NAME: Final = "selection"
#: What ``newid()`` gives here: to select by it makes no sense, and is no error in a filter.
_NO_ID: Final = uuid.UUID(int=0)


class Selection:
    """A compiled selection; everything when neither part is given."""

    __slots__ = ("_condition", "_rule")

    def __init__(self, sql: str | None = None, condition: str | None = None) -> None:
        """Compile it.

        Raises:
            ArgumentInvalid, ArgumentOutOfRange: A text is none; the error names the position.
        """
        self._rule: Rule | None = None
        if sql is not None:
            self._rule = compile_rule(RuleDescription(name=_NAME, filter_type=SQL, sql_filter=sql))
        self._condition = None if condition is None else JsonCondition(condition)

    @property
    def is_everything(self) -> bool:
        """Whether no message is left out."""
        return self._rule is None and self._condition is None

    def takes(
        self,
        payload: bytes,
        special: MessageMetadata | None,
        *,
        enqueued_ms: int,
        sequence_number: int,
        deliveries: int,
    ) -> bool:
        """Whether a message is meant; one that the filter cannot be applied to is not."""
        if self.is_everything:
            return True
        try:
            seen = as_seen(payload, special)
        except DecodeError:
            return False
        if self._condition is not None:
            body = body_of(seen)
            if body is None or not self._condition.holds(body):
                return False
        return self._rule is None or self._passes(self._rule, seen, special, enqueued_ms, sequence_number, deliveries)

    @staticmethod
    def _passes(
        rule: Rule,
        seen: bytes,
        special: MessageMetadata | None,
        enqueued_ms: int,
        sequence_number: int,
        deliveries: int,
    ) -> bool:
        view = MessageView(seen, special, enqueued_ms, sequence_number)
        view.new_id = lambda: _NO_ID
        try:
            view.need(rule.sections)
            if rule.sections & ENVELOPE:
                view.system[DELIVERY_COUNT] = deliveries
            return bool(rule.test(view))
        except (EvaluationError, EffortExceeded):
            return False


def as_seen(payload: bytes, special: MessageMetadata | None) -> bytes:
    """The bare message as a receiver of a dead letter sees it.

    Raises:
        DecodeError: The message is malformed.
    """
    payload = merged(payload, special)
    if special is None or (special.reason is None and special.description is None):
        return payload
    reasons = ((REASON, special.reason), (DESCRIPTION, special.description))
    return Overlay(application={name: text for name, text in reasons if text is not None}).apply_to(payload)


def body_of(payload: bytes) -> bytes | str | None:
    """The bytes or the text of a body; None when it is neither."""
    start, value, _ = find_section(payload, DATA)
    if start != value:
        return b"".join(split_batch(payload)[1])
    start, value, _ = find_section(payload, VALUE)
    content = decode(payload, value)[0] if start != value else None
    return content if isinstance(content, bytes | str) else None
