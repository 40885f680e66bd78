"""Trying rules over HTTP: from JSON to a rule and a message, and from what came of it to JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from duobus.broker import Subscription
from duobus.errors import ArgumentInvalid, NotAllowed
from duobus.gateway.waits import StepBudget
from duobus.model.address import Address
from duobus.model.descriptions import RuleDescription, TypedValue
from duobus.model.json.messages import form_of, message_of
from duobus.model.metadata import MessageMetadata
from duobus.rules import typed_value
from duobus.rules.trial import Trial, try_description, try_rule, view_of

if TYPE_CHECKING:
    from duobus.broker import ScaleUnit
    from duobus.model.overlay import Overlay

#: Rules of a subscription that one answer tells; those that match, or fail, come first.
RULES_MAX: Final = 1_000
#: Messages, as actions have changed them, in an answer about a subscription.
CHANGED_MAX: Final = 20
#: Trials of new rules that are worked on at a time, each in a thread: a long one takes a tenth of a second.
TRIALS_MAX: Final = 2
#: Rules of a subscription that are tried in one go.
_RULES_AT_ONCE: Final = 20

_NAME: Final = "tried"
_MEMBERS: Final = frozenset({"filter", "action", "actionParameters", "message"})
_FILTERS: Final = frozenset({"sql", "parameters", "correlation", "isTrue"})


class RuleTrials:
    """Tries rules for whoever asks."""

    def __init__(self, unit: ScaleUnit) -> None:
        self._unit = unit
        self._room = asyncio.Semaphore(TRIALS_MAX)

    async def try_new(self, form: Mapping[str, Any]) -> dict[str, Any]:
        """Try a rule that nobody has made.

        Raises:
            ArgumentInvalid, ArgumentOutOfRange: The form is wrong; a mistake in the rule is part of the answer.
        """
        description = _description_of(form)
        payload, metadata = _message_in(form)
        async with self._room:
            loop = asyncio.get_running_loop()
            now_ms, new_id = self._unit.now_ms(), self._unit.new_id
            trial = await loop.run_in_executor(
                None, lambda: try_description(description, payload, metadata, enqueued_ms=now_ms, new_id=new_id)
            )
        return {
            "matches": trial.matches,
            "mistake": None if trial.mistake is None else trial.mistake._asdict(),
            "error": trial.error,
            "terms": [term._asdict() for term in trial.terms],
            "actionError": trial.action_error,
            "message": None if trial.overlay is None else _changed(payload, metadata, trial.overlay),
        }

    async def try_existing(self, namespace: str, address: Address, form: Mapping[str, Any]) -> dict[str, Any]:
        """Try all rules of a subscription, and tell what each gives.

        Raises:
            EntityNotFound: There is no such subscription.
            NotAllowed: It is none.
            ArgumentInvalid, ArgumentOutOfRange: The form is wrong.
        """
        entity = self._unit.namespace(namespace).resolve(address)
        if not isinstance(entity, Subscription):
            raise NotAllowed(f"The {entity.kind} '{entity.path}' has no rules. Name a subscription.")
        _demand_members(form, frozenset({"message"}), "A trial of a subscription's rules")
        payload, metadata = _message_in(form)
        rules = list(entity.rules)
        view = view_of(payload, metadata, self._unit.now_ms(), self._unit.new_id)
        budget = StepBudget(_RULES_AT_ONCE)
        trials: list[tuple[str, Trial]] = []
        left = 0
        for rule in rules:
            trial = try_rule(rule, view)
            if trial.matches is not False or len(trials) < RULES_MAX:
                trials.append((rule.name, trial))
            else:
                left += 1
            await budget.spend()
        trials.sort(key=lambda one: one[1].matches is False)
        left += max(0, len(trials) - RULES_MAX)
        changed = 0
        told: list[dict[str, Any]] = []
        for name, trial in trials[:RULES_MAX]:
            message = None
            if trial.overlay is not None and changed < CHANGED_MAX:
                message = _changed(payload, metadata, trial.overlay)
                changed += 1
            told.append(
                {
                    "rule": name,
                    "matches": trial.matches,
                    "error": trial.error,
                    "hasAction": trial.overlay is not None or trial.action_error is not None,
                    "actionError": trial.action_error,
                    "message": message,
                }
            )
            await budget.spend()
        return {
            "entity": entity.path,
            "matches": any(trial.matches for _, trial in trials),
            "rules": told,
            "leftOut": left,
        }


def _description_of(form: Mapping[str, Any]) -> RuleDescription:
    _demand_members(form, _MEMBERS, "A trial")
    chosen = _object(form, "filter")
    _demand_members(chosen, _FILTERS, "filter")
    action = form.get("action")
    if action is not None and not isinstance(action, str):
        raise ArgumentInvalid("action is the text of an SQL action, as 'SET priority = 1'.")
    given = [name for name in ("sql", "correlation", "isTrue") if chosen.get(name) is not None]
    if len(given) > 1:
        raise ArgumentInvalid("A filter is one of sql, correlation and isTrue.")
    about = RuleDescription(name=_NAME, sql_action=action, action_parameters=_parameters(form, "actionParameters"))
    replaced = msgspec.structs.replace
    if given == ["sql"]:
        if not isinstance(chosen["sql"], str):
            raise ArgumentInvalid("sql is the text of an SQL filter.")
        parameters = _parameters(chosen, "parameters")
        return replaced(about, filter_type="Sql", sql_filter=chosen["sql"], sql_parameters=parameters)
    if given == ["correlation"]:
        fields = _object(chosen, "correlation")
        return replaced(about, filter_type="Correlation", correlation_filter=fields)
    return replaced(about, filter_type="False" if chosen.get("isTrue") is False else "True")


def _parameters(form: Mapping[str, Any], name: str) -> dict[str, TypedValue] | None:
    """Values of parameters: plain ones, or objects with ``type`` and ``value`` as rules have them."""
    found = _object(form, name)
    return {key: _typed(key, value) for key, value in found.items()} or None


def _typed(key: str, value: Any) -> TypedValue:
    if isinstance(value, dict):
        texts = [value.get("type"), value.get("value")]
        if len(value) == len(texts) and all(isinstance(text, str) for text in texts):
            return TypedValue(value["type"], value["value"])
    elif value is not None and not isinstance(value, list):
        return typed_value(value)
    raise ArgumentInvalid(f"The value of {key[:64]!r} is a text, number, boolean, or an object with type and value.")


def _message_in(form: Mapping[str, Any]) -> tuple[bytes, MessageMetadata]:
    if "message" not in form:
        raise ArgumentInvalid("A trial needs a message, in the form of a message in JSON.")
    return message_of(form["message"])


def _changed(payload: bytes, metadata: MessageMetadata, overlay: Overlay) -> dict[str, Any]:
    """The message as the action has changed it."""
    changed = overlay.metadata(metadata)
    return form_of(overlay.apply_to(payload), changed)


def _object(form: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = form.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ArgumentInvalid(f"{name} is an object.")
    return found


def _demand_members(form: Mapping[str, Any], known: frozenset[str], what: str) -> None:
    unknown = sorted(form.keys() - known)
    if unknown:
        raise ArgumentInvalid(f"{what} has no member {unknown[0][:64]!r}; there are {', '.join(sorted(known))}.")
