"""The five commands that every kind of entity has: create, show, list, update, delete.

A kind is described by a ``Noun``; its module makes the group of its commands from that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

from duobus.cli.failures import AlreadyExists, NotFound
from duobus.cli.output import Column, Commands, Printer, Record
from duobus.cli.remote import Remote, duration, remote_command
from duobus.console.namespace.sdk_forms import camel, plain
from duobus.model.properties import Form, Surface, properties_of

#: Attributes of the runtime properties, whichever of them a kind has.
_RUNTIME: Final = (
    "active_message_count",
    "dead_letter_message_count",
    "scheduled_message_count",
    "transfer_message_count",
    "transfer_dead_letter_message_count",
    "total_message_count",
    "subscription_count",
    "size_in_bytes",
    "created_at_utc",
    "updated_at_utc",
    "accessed_at_utc",
)

_STATUSES: Final = ("Active", "Disabled", "ReceiveDisabled", "SendDisabled")


class PropertyOption(NamedTuple):
    """An option that is a property: its flags, as ``az servicebus`` names them, and its name in the SDK."""

    flags: tuple[str, ...]
    name: str
    type: Any
    help: str
    is_fixed: bool = False  # once the entity is there
    is_many: bool = False  # may be given several times


_TYPES: Final[dict[Form, Any]] = {
    Form.FLAG: bool,
    Form.NUMBER: click.IntRange(1),
    Form.SIZE: click.IntRange(1),
    Form.MESSAGE_SIZE: click.IntRange(1),
    Form.DURATION: duration,
    Form.FINITE: duration,
    Form.TEXT: str,
    Form.TARGET: str,
    Form.STATUS: click.Choice(_STATUSES),
}
_PARTITIONING: Final = "enable_partitioning"


def options_of(kind: str) -> tuple[PropertyOption, ...]:
    """The options of a queue, topic or subscription."""
    found = sorted((item for item in properties_of(kind, Surface.SDK) if item.help), key=lambda item: item.place)
    return tuple(
        PropertyOption(
            tuple((item.flags or f"--{item.sdk_name.replace('_', '-')}").split()),
            item.sdk_name,
            _TYPES[item.form],
            item.help,
            item.is_fixed,
        )
        for item in found
    )


class Noun(NamedTuple):
    """A kind of entity.

    Args:
        name: As in the names of the SDK's methods.
        parents: Arguments in front of the name.
        properties: Options of create and update.
        columns: What tsv shows of several.
        table: What a table of several shows.
        examples: Per command, what follows its name.
        convert: Makes the SDK's keywords of the options given.
    """

    name: str
    parents: tuple[str, ...]
    properties: tuple[PropertyOption, ...]
    columns: tuple[str, ...]
    table: tuple[Column, ...]
    examples: Mapping[str, str]
    convert: Callable[[dict[str, Any]], dict[str, Any]] = dict


def record_of(noun: Noun, entity: Any, runtime: Any = None) -> Record:
    """What is printed of an entity; of its access rules the names and rights, never the keys."""
    found: dict[str, Any] = {"name": entity.name}
    if noun.name == "rule":
        return found | {"filter": _rule_part(entity.filter), "action": _rule_part(entity.action)}
    found |= {camel(item.name): plain(getattr(entity, item.name, None)) for item in noun.properties}
    rules = getattr(entity, "authorization_rules", None) or ()
    if rules:
        found["authorizationRules"] = [
            {"keyName": rule.key_name, "rights": [plain(right) for right in rule.rights or ()]} for rule in rules
        ]
    if runtime is not None:
        found |= {camel(name): plain(getattr(runtime, name)) for name in _RUNTIME if hasattr(runtime, name)}
    return found


def _rule_part(part: Any) -> Any:
    if part is None:
        return None
    found = {camel(name): plain(value) for name, value in vars(part).items() if value and name[0] != "_"}
    found.pop("requiresPreprocessing", None)
    kind = type(part).__name__.removesuffix("RuleFilter").removesuffix("RuleAction")
    return {"type": kind.lower(), **found}


def group_of(noun: Noun) -> click.Group:
    """The group of a kind's commands."""
    plural = {"queue": "queues", "topic": "topics", "subscription": "subscriptions", "rule": "rules"}[noun.name]
    verbs = "update, purge and delete" if noun.name in {"queue", "subscription"} else "update and delete"
    group = Commands(noun.name, help=f"Create, show, list, {verbs} {plural}.", no_args_is_help=True)
    for make in (_create, _show, _list, _update, _delete):
        group.add_command(make(noun))
    return group


def _command(noun: Noun, verb: str, text: str, function: Callable[..., None], options: Sequence[Any]) -> click.Command:
    decorated = remote_command(has_output=verb != "delete")(function)
    for option in reversed(options):
        decorated = option(decorated)
    names = noun.parents if verb == "list" else (*noun.parents, "name")
    for name in reversed(names):
        decorated = click.argument(name)(decorated)
    epilog = f"\b\nExample:\n  duobus {noun.name} {verb} {noun.examples.get(verb, noun.examples['show'])}"
    return click.command(verb, help=text, short_help=text, epilog=epilog)(decorated)


def _click_options(properties: Iterable[PropertyOption]) -> list[Any]:
    return [
        click.option(*item.flags, item.name, type=item.type, multiple=item.is_many, help=item.help)
        for item in properties
    ]


_NO_PARTITIONED: Final = click.option(
    "--no-partitioned", is_flag=True, help="One fragment only, as --enable-partitioning false."
)
_DRY_RUN: Final = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")


def _path(noun: Noun, given: dict[str, Any]) -> tuple[str, ...]:
    """The names of an entity, taken out of what was given."""
    return tuple(given.pop(name) for name in (*noun.parents, "name"))


def _named(noun: Noun, path: Sequence[str]) -> str:
    return f"{noun.name} {'/'.join(path)}"


def _given(noun: Noun, options: dict[str, Any]) -> dict[str, Any]:
    return noun.convert({name: value for name, value in options.items() if value not in (None, ())})


def _told(text: str) -> None:
    click.echo(text, err=True)


def _create(noun: Noun) -> click.Command:
    def run(remote: Remote, output: str | None, dry_run: bool, no_partitioned: bool = False, **options: Any) -> None:
        path = _path(noun, options)
        if _PARTITIONING in options:
            options[_PARTITIONING] = _partitioned(options[_PARTITIONING], no_partitioned)
        properties = _given(noun, options)
        with remote.administration(_named(noun, path)) as client:
            if dry_run:
                _refuse_present(noun, client, path)
                _told(f"Would create the {_named(noun, path)}.")
                asked = {
                    camel(key): _rule_part(item) if hasattr(item, "__dict__") else plain(item)
                    for key, item in properties.items()
                }
                records = [{"name": path[-1], **asked}]
            else:
                records = [dict(record_of(noun, getattr(client, f"create_{noun.name}")(*path, **properties)))]
        with Printer(output, is_one=True) as printer:
            printer.print(records)

    is_partitionable = any(item.name == _PARTITIONING for item in noun.properties)
    switches = [_NO_PARTITIONED] if is_partitionable else []
    options = [*_click_options(noun.properties), *switches, _DRY_RUN]
    return _command(noun, "create", f"Create a {noun.name}.", run, options)


def _partitioned(asked: bool | None, is_off: bool) -> bool:
    """Whether a new entity is to be partitioned: who creates one by hand gets that unless he refuses (PE3)."""
    if asked and is_off:
        raise click.UsageError("Give --enable-partitioning true or --no-partitioned, not both.")
    return not is_off and asked is not False


def _refuse_present(noun: Noun, client: Any, path: tuple[str, ...]) -> None:
    """Fail as a creation would if there is such an entity."""
    from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

    try:
        getattr(client, f"get_{noun.name}")(*path)
    except ResourceNotFoundError:
        return
    except HttpResponseError as error:
        if error.status_code != 404:
            raise
        return
    except AttributeError:
        # The SDK has no other words for an entity of another kind, which has the name, too.
        pass
    raise AlreadyExists(f"The {_named(noun, path)} exists already.")


def _get(noun: Noun, client: Any, path: tuple[str, ...]) -> Any:
    """The entity of a path.

    Raises:
        NotFound: There is one of another kind.
    """
    try:
        return getattr(client, f"get_{noun.name}")(*path)
    except AttributeError:
        # The SDK has no other words for an entity of another kind.
        raise NotFound(f"There is no {_named(noun, path)}: the entity of this name is of another kind.") from None


def _show(noun: Noun) -> click.Command:
    def run(remote: Remote, output: str | None, **options: Any) -> None:
        path = _path(noun, options)
        with remote.administration(_named(noun, path)) as client:
            entity = _get(noun, client, path)
            runtime = getattr(client, f"get_{noun.name}_runtime_properties", None)
            record = record_of(noun, entity, runtime and runtime(*path))
        with Printer(output, is_one=True) as printer:
            printer.print([record])

    text = f"Show a {noun.name}" + ("." if noun.name == "rule" else ", its properties and its counts.")
    return _command(noun, "show", text, run, [])


def _list(noun: Noun) -> click.Command:
    def run(remote: Remote, output: str | None, **options: Any) -> None:
        parents = [options[name] for name in noun.parents]
        where = "/".join(parents)
        number = 0
        with (
            remote.administration(f"{noun.parents[-1]} {where}" if where else "list") as client,
            Printer(output, noun.columns, table=noun.table, gathers=True) as printer,
        ):
            for page in _pages(noun, client, parents):
                printer.print(page)
                number += len(page)
            if not number and parents:
                _demand_parent(noun, client, parents)
        if not number:
            _told(f"There are no {noun.name}s" + (f" of {where}." if where else "."))

    where = f" of a {noun.parents[-1]}" if noun.parents else ""
    counts = "" if noun.name == "rule" else ", with counts"
    return _command(noun, "list", f"List all {noun.name}s{where}{counts}.", run, [])


def _demand_parent(noun: Noun, client: Any, parents: Sequence[str]) -> None:
    """Fail where the parent of a list is not there: of that, too, the server says that there are no entries.

    Raises:
        NotFound: There is an entity of another kind.
    """
    kind = noun.parents[-1]
    try:
        getattr(client, f"get_{kind}")(*parents)
    except AttributeError:
        # The SDK has no other words for an entity of another kind.
        raise NotFound(f"There is no {kind} {'/'.join(parents)}: the entity of this name is of another kind.") from None


def _pages(noun: Noun, client: Any, parents: Sequence[str]) -> Iterator[list[Record]]:
    """The records of all entities of a kind, with their counts.

    The SDK reads properties and counts in requests of their own. An entity that is created or deleted between the two
    has no counts.
    """
    counting = getattr(client, f"list_{noun.name}s_runtime_properties", None)
    counts = iter(()) if counting is None else counting(*parents).by_page()
    found: dict[str, Any] = {}
    for page in getattr(client, f"list_{noun.name}s")(*parents).by_page():
        entities = list(page)
        found |= {runtime.name: runtime for runtime in next(counts, ())}
        yield [record_of(noun, entity, found.pop(entity.name, None)) for entity in entities]


def _update(noun: Noun) -> click.Command:
    def run(remote: Remote, output: str | None, dry_run: bool, **options: Any) -> None:
        path = _path(noun, options)
        properties = _given(noun, options)
        if not properties:
            raise click.UsageError("Give at least one property to change; see --help.")
        with remote.administration(_named(noun, path)) as client:
            entity = _get(noun, client, path)
            for name, value in properties.items():
                setattr(entity, name, value)
            if dry_run:
                _told(f"Would update the {_named(noun, path)}.")
            else:
                getattr(client, f"update_{noun.name}")(*path[:-1], entity)
                entity = getattr(client, f"get_{noun.name}")(*path)
        with Printer(output, is_one=True) as printer:
            printer.print([record_of(noun, entity)])

    changeable = [item for item in noun.properties if not item.is_fixed]
    text = f"Change properties of a {noun.name}; the others stay."
    return _command(noun, "update", text, run, [*_click_options(changeable), _DRY_RUN])


def _delete(noun: Noun) -> click.Command:
    def run(remote: Remote, dry_run: bool, yes: bool, **options: Any) -> None:
        path = _path(noun, options)
        what = _named(noun, path)
        if not dry_run and not yes:
            if not sys.stdin.isatty():
                raise click.UsageError(f"Give --yes to delete the {what}, or --dry-run.")
            click.confirm(f"Delete the {what} with all that is in it?", abort=True, err=True)
        with remote.administration(what) as client:
            if dry_run or not noun.parents:
                # To delete a queue is the same request as to delete a topic, which is not what was meant.
                _get(noun, client, path)
            if dry_run:
                _told(f"Would delete the {what}.")
            else:
                getattr(client, f"delete_{noun.name}")(*path)

    is_sure = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
    return _command(
        noun,
        "delete",
        f"Delete a {noun.name}" + ("." if noun.name == "rule" else ", and what is in it."),
        run,
        [is_sure, _DRY_RUN],
    )
