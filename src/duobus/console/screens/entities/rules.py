"""The rules of a subscription: made, changed, and looked over for mistakes while they are typed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from duobus.console.formats import entity_url
from duobus.console.namespace.failures import NamespaceError
from duobus.console.screens.entities.calls import change_rule, create_rule, read_rule
from duobus.console.screens.entities.fields import plain_sentence
from duobus.console.screens.entities.paths import EntityPath, parse_path
from duobus.console.screens.entities.rule_forms import (
    ALL_FILTERS,
    CORRELATION_FIELDS,
    MESSAGE_FIELDS,
    Mistake,
    mistake_at,
    rule_texts,
    rule_words,
    trial_of,
    typed_rule,
)
from duobus.console.visits import Outcome, Redirect, Refusal, Screen, View, Visit

screen: Final = Screen("entities")

_TEMPLATE: Final = "entities/rule.html"
_SHOWN_MAX: Final = 256 << 10
#: Whether the namespace tries rules; asked once a session.
_TRIES: Final = "entities_try"
#: Fields of the form of a rule.
FIELDS: Final = (
    "filter",
    "sql",
    "parameters",
    "properties",
    "action",
    "action_parameters",
    *(name for name, _ in CORRELATION_FIELDS),
)


async def can_try(visit: Visit) -> bool:
    """Whether the namespace tries rules without making them."""
    found = visit.session.memory.get(_TRIES)
    if found is None:
        found = visit.namespace.is_duobus and visit.namespace.rights.listen
        if found:
            try:
                await visit.namespace.operation("POST", "/$duobus/try-rule", body={"message": {}})
            except NamespaceError as error:
                if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                    return False
                found = False
        visit.session.memory[_TRIES] = found
    return bool(found)


def typed_texts(visit: Visit) -> dict[str, str]:
    """What stands in the fields; browsers send lines with another end than they count."""
    return {name: visit.form.get(name, "").replace("\r\n", "\n") for name in FIELDS}


def subscription_in(text: str) -> EntityPath:
    """The subscription that a path of the console means.

    Raises:
        Refusal: It means something else.
    """
    path = parse_path(text)
    if path.subscription is None or path.rule is not None:
        raise Refusal(HTTPStatus.NOT_FOUND, f"{text} is no subscription.")
    return path


def _rule_in(text: str) -> EntityPath:
    path = parse_path(text)
    if path.rule is None:
        raise Refusal(HTTPStatus.NOT_FOUND, f"{text} is no rule.")
    return path


async def _view(
    visit: Visit,
    path: EntityPath,
    texts: Mapping[str, str],
    *,
    status: int = HTTPStatus.OK,
    name: str = "",
    faults: Mapping[str, str] | None = None,
    failure: NamespaceError | None = None,
    mistake: Mistake | None = None,
    shown: Mapping[str, Any] | None = None,
    now: Mapping[str, Any] | None = None,
    times: Sequence[str] = (),
) -> View:
    """The form of a rule; ``path`` is the rule's, or that of the subscription for a new one."""
    is_new = path.rule is None
    subscription = EntityPath(path.parent, path.subscription).text
    data = {
        "is_new": is_new,
        "subscription": subscription,
        "rule": path.rule or "",
        "path_text": path.text,
        "name": name,
        "action_url": entity_url(path.text, "create/rule" if is_new else "rules"),
        "texts": dict(texts),
        "filters": [list(pair) for pair in ALL_FILTERS],
        "correlation_fields": [list(pair) for pair in CORRELATION_FIELDS],
        "message_fields": [list(pair) for pair in MESSAGE_FIELDS],
        "message_texts": {},
        "message_faults": {},
        "faults": dict(faults or {}),
        "failure": None
        if failure is None
        else {"text": plain_sentence(failure.text), "tracking_id": failure.tracking_id},
        "mistake": shown_mistake(mistake),
        "shown": "" if shown is None else json.dumps(shown),
        "now": None if now is None else rule_words(now),
        "can_try": await can_try(visit),
        "times": list(times),
    }
    return View(_TEMPLATE, f"Create a rule of {subscription}" if is_new else f"Rule {path.rule}", data, status)


def shown_mistake(mistake: Mistake | None) -> dict[str, Any] | None:
    """A mistake for a template."""
    return None if mistake is None else mistake._asdict() | {"pointer": mistake.pointer}


# -- create -----------------------------------------------------------------------------------------------------


@screen.get("/create/rule/{path:.+}", right="manage")
async def new(visit: Visit) -> View:
    """An empty form, or one with the rule that is copied."""
    path = subscription_in(visit.match["path"])
    copied = visit.query.get("copy", "")
    if not copied:
        return await _view(visit, path, dict.fromkeys(FIELDS, "") | {"filter": "sql"})
    rule = await read_rule(visit.namespace, EntityPath(path.parent, path.subscription, copied))
    return await _view(visit, path, rule_texts(rule.form), name=f"{copied}-copy", times=rule.times)


@screen.post("/create/rule/{path:.+}", right="manage")
async def create(visit: Visit) -> Outcome:
    """Create a rule."""
    path = subscription_in(visit.match["path"])
    texts, name = typed_texts(visit), visit.form.get("name", "").strip()
    rule, faults = typed_rule(name, texts)
    if not name:
        faults["name"] = "A name is needed."
    if faults:
        return await _view(visit, path, texts, status=HTTPStatus.UNPROCESSABLE_ENTITY, name=name, faults=faults)
    try:
        await create_rule(visit.namespace, path._replace(rule=name), rule)
    except NamespaceError as error:
        return await _refused(visit, path, texts, rule, error, name=name)
    return Redirect(entity_url(path.text, tab="rules"), notice=f"The rule {name} is created.")


async def _refused(
    visit: Visit,
    path: EntityPath,
    texts: Mapping[str, str],
    rule: Mapping[str, Any],
    error: NamespaceError,
    **more: Any,
) -> View:
    """The form again: with the place of the mistake where the namespace tells it."""
    mistake = await find_mistake(visit, rule)
    sentence = plain_sentence(error.text)
    if mistake is None and " at position " in sentence:
        # Azure and servers that try no rules tell of the first mistake only, and the filter is read first.
        mistake = mistake_at("filter", rule["filter"].get("sqlExpression", ""), None, sentence)
    faults = {} if mistake is not None else {"name": sentence} if " name " in f" {sentence.lower()} " else {}
    if error.status == HTTPStatus.CONFLICT:
        faults = {"name": sentence}
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    return await _view(visit, path, texts, status=status, faults=faults, failure=error, mistake=mistake, **more)


async def find_mistake(visit: Visit, rule: Mapping[str, Any]) -> Mistake | None:
    """The first mistake of a rule, where the namespace tries rules."""
    if not await can_try(visit):
        return None
    try:
        found = await visit.namespace.operation("POST", "/$duobus/try-rule", body=trial_of(rule, {}))
    except NamespaceError:
        # What was to be told is told already: the namespace has refused the rule itself.
        return None
    return mistake_in(rule, found["mistake"])


def mistake_in(rule: Mapping[str, Any], told: Mapping[str, Any] | None) -> Mistake | None:
    """The mistake that a namespace tells of a rule."""
    if told is None:
        return None
    action = rule.get("action") or {}
    text = rule["filter"].get("sqlExpression", "") if told["part"] == "filter" else action.get("sqlExpression", "")
    return mistake_at(str(told["part"]), text, told["position"], str(told["text"]).removeprefix("Rule 'tried': "))


# -- change -----------------------------------------------------------------------------------------------------


@screen.get("/rules/{path:.+}", right="manage")
async def edit(visit: Visit) -> View:
    """The form of a rule that is there."""
    path = _rule_in(visit.match["path"])
    rule = await read_rule(visit.namespace, path)
    return await _view(visit, path, rule_texts(rule.form), shown=rule.form, times=rule.times)


@screen.post("/rules/{path:.+}", right="manage")
async def change(visit: Visit) -> Outcome:
    """Replace filter and action of a rule, unless somebody else has changed the rule meanwhile."""
    path = _rule_in(visit.match["path"])
    texts = typed_texts(visit)
    shown = _shown_rule(visit)
    rule, faults = typed_rule(path.name, texts)
    if faults:
        status = HTTPStatus.UNPROCESSABLE_ENTITY
        return await _view(visit, path, texts, status=status, faults=faults, shown=shown)
    try:
        now = json.loads(json.dumps((await read_rule(visit.namespace, path)).form))
        if now != shown:
            return await _view(visit, path, texts, status=HTTPStatus.CONFLICT, shown=now, now=now)
        await change_rule(visit.namespace, path, rule)
    except NamespaceError as error:
        return await _refused(visit, path, texts, rule, error, shown=shown)
    subscription = EntityPath(path.parent, path.subscription)
    return Redirect(entity_url(subscription.text, tab="rules"), notice=f"The rule {path.rule} is changed.")


def _shown_rule(visit: Visit) -> dict[str, Any]:
    text = visit.form.get("shown", "")
    try:
        found = json.loads(text) if len(text) <= _SHOWN_MAX else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "The form does not say what was shown: load the page anew.")
    return found


# -- while a person types ---------------------------------------------------------------------------------------


@screen.post("/check-rule", right="listen", only_duobus=True)
async def check(visit: Visit) -> View:
    """Whether the rule could be made as it stands."""
    rule, faults = typed_rule("", typed_texts(visit))
    data: dict[str, Any] = {"faults": list(faults.values()), "mistake": None, "is_good": False}
    if not faults and await can_try(visit):
        found = await visit.namespace.operation("POST", "/$duobus/try-rule", body=trial_of(rule, {}))
        mistake = mistake_in(rule, found["mistake"])
        data |= {"mistake": shown_mistake(mistake), "is_good": mistake is None}
    return View("entities/check.html", "Rule", data)
