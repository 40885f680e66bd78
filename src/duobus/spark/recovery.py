"""Recovery by hand: claims that no query will finish, and deferred messages that no checkpoint names.

``dead_letter`` is for use inside of ``foreachBatch``; ``release`` and ``sweep`` are for use while the queries on an
entity are stopped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from duobus.clock import Clock
from duobus.spark.claims.broker_claims import BrokerClaims, Unsupported
from duobus.spark.claims.engine import ClaimEngine, Seen
from duobus.spark.claims.lock_handles import is_deferred, seen_of
from duobus.spark.connection import (
    Place,
    counts_deferrals,
    demand_reachable,
    is_duobus,
    namespace_of,
    new_client,
    place_of,
)
from duobus.spark.entities import PEEK, look, open_receiver, open_sender, peek, split_name, told
from duobus.spark.errors import CheckpointError, EntityError, OptionError
from duobus.spark.offsets import Claim, ClaimOffset, Key, by_fragment
from duobus.spark.options import CONNECTION_OPTIONS, parse
from duobus.spark.retry import retried
from duobus.spark.sink.resend import Reactivation

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient
    from pyspark.sql import DataFrame

#: What happens to messages: active again, with a new number; dead letters; or only told about.
REACTIVATE: Final = "reactivate"
DEAD_LETTER: Final = "dead-letter"
REPORT: Final = "report"
#: Bytes of a file of a checkpoint.
FILE_BYTES_MAX: Final = 256 << 20
#: How long to try for a session that somebody holds.
SESSION_TIMEOUT_S: Final = 30.0
#: Rows that are brought to the driver at a time.
ROWS_AT_ONCE: Final = 1_000

#: Messages that are locked at a time: their locks have to last until they are done.
LOCKED_AT_ONCE: Final = 100

#: Why, in the dead-letter queue.
RELEASED: Final = "SparkClaimReleased"
SWEPT: Final = "SparkStrayDeferral"


def dead_letter(
    df: DataFrame,
    reason: str,
    description: str | None = None,
    *,
    options: Mapping[str, str],
    exclusive: bool = False,
) -> int:
    """Move the messages of some rows to the dead-letter queue of their entity, within the batch that has them.

    The settlement of the batch later finds them missing, which counts as settled. Rows that are there no more, since
    the batch runs a second time, are passed over.

    Args:
        df: Rows of a claim stream, with ``entity``, ``sequence_number``, and the columns below.
        reason: Name of the column with the reason.
        description: Name of the column with the description, if there is one.
        options: The stream's options for the connection.
        exclusive: Whether the entities require sessions; then ``session_id`` is needed too.

    Returns:
        The number of messages that were moved.
    """
    place = place_of(parse({name: options[name] for name in options}, CONNECTION_OPTIONS))
    columns = ["entity", "sequence_number", reason, *([description] if description else [])]
    if exclusive:
        columns.append("session_id")
    moved = 0
    with new_client(place) as client:
        for rows in _chunks(df.select(*dict.fromkeys(columns)).toLocalIterator(), ROWS_AT_ONCE):
            groups: dict[Key, dict[int, tuple[str, str]]] = {}
            for row in rows:
                key = Key(row["entity"], row["session_id"] if exclusive else None)
                why = str(row[reason]), str(row[description]) if description else ""
                groups.setdefault(key, {})[row["sequence_number"]] = why
            for key, why_of in groups.items():
                moved += dead_letter_numbers(client, key, why_of)
    return moved


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    for item in items:
        chunk.append(item)
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def dead_letter_numbers(client: ServiceBusClient, key: Key, why_of: Mapping[int, tuple[str, str]]) -> int:
    """Move deferred messages to the dead-letter queue, with reason and description; return how many were there."""

    def work() -> int:
        done = 0
        with open_receiver(client, key) as receiver:
            for message in _locked(receiver, key, list(why_of)):
                reason, description = why_of[message.sequence_number]
                receiver.dead_letter_message(message, reason=reason, error_description=description)
                done += 1
        return done

    return int(retried(key, work, Clock(), SESSION_TIMEOUT_S))


def _locked(receiver: Any, key: Key, numbers: list[int]) -> Iterator[Any]:
    """Receive deferred messages under a lock, those that are there and deferred; by fragment."""
    for part in by_fragment(numbers).values():
        there = _deferred(receiver, part)
        for at in range(0, len(there), LOCKED_AT_ONCE):
            yield from _taken(receiver, key, there[at : at + LOCKED_AT_ONCE])


def _deferred(receiver: Any, numbers: list[int]) -> list[int]:
    return [message.sequence_number for message in look(receiver, numbers) if is_deferred(message)]


def _taken(receiver: Any, key: Key, numbers: list[int]) -> list[Any]:
    from azure.servicebus.exceptions import MessageNotFoundError

    try:
        return list(receiver.receive_deferred_messages(numbers))
    except MessageNotFoundError:
        left = _deferred(receiver, numbers)
        if len(left) == len(numbers):
            # They are locked: passing them over would leave what the caller takes for done.
            raise EntityError(
                f"Claimed messages of '{key.entity}' are locked by somebody, such as a process like this one that was "
                "killed. Do it again when their locks have ended; what release then passes over, 'duobus spark sweep' "
                "finds. Nothing is lost."
            ) from None
    # One that is gone fails the request for all.
    return _taken(receiver, key, left) if left else []


def release(
    checkpoint: str | Path, options: Mapping[str, str], *, action: str = REACTIVATE, batch: int | None = None
) -> dict[str, Any]:
    """Free the claim of a query that is stopped and will not be started again, or not with this batch.

    If the batch is in the commit log, its messages were handed over, and this function removes them as the query would
    have done next. Otherwise the messages are made active again, each as a copy with a new number, or moved to the
    dead-letter queue. When this function is killed and called again, a queue with duplicate detection has each message
    once; any other queue has the last message twice, with one id. What duobus has claimed for a batch that was never
    written down is given back as it is.

    Args:
        checkpoint: The query's checkpoint, as a folder that this machine sees.
        options: The stream's options for the connection.
        action: ``reactivate``, ``dead-letter``, or ``report``, which changes nothing.
        batch: Number of the batch; by default the newest.

    Returns:
        ``batch``, ``committed``, ``action``, ``messages`` (their number), and ``doubtful``: the number of further
        messages of the claim that are deferred and were left alone, because their counts say that another receiver has
        held them since.

    Raises:
        CheckpointError: There is no such checkpoint, or it is not of a claim stream in this namespace.
        OptionError: There is no such action.
    """
    _demand_action(action)
    place = place_of(parse(options, CONNECTION_OPTIONS))
    folder = Path(checkpoint)
    numbers = batches_in(folder / "offsets")
    if not numbers:
        raise CheckpointError(f"There is no checkpoint of a stream in {folder}: it has no offsets.")
    which = max(numbers) if batch is None else batch
    if which not in numbers:
        raise CheckpointError(f"The checkpoint {folder} has no batch {which}; it has {min(numbers)} to {max(numbers)}.")
    is_committed = which in batches_in(folder / "commits")
    done = doubtful = 0
    demand_reachable(place)
    # Looked up without retries of the SDK, which takes a missing number for a passing fault; ``retried`` has its own.
    with new_client(place) as client, new_client(replace(place, retries=0)) as looking:
        for offset in claims_in(folder / "offsets" / str(which)):
            ours, others = _ours(looking, place, offset)
            doubtful += others
            for key, members in ours.items():
                how = "remove" if is_committed and action != REPORT else action
                done += _released(client, place, key, list(members), how, RELEASED)
            if which == max(numbers) and action != REPORT:
                done += _given_back(client, place, offset)
    return {"batch": which, "committed": is_committed, "action": action, "messages": done, "doubtful": doubtful}


def sweep(
    entity: str, checkpoints: Iterable[str | Path], options: Mapping[str, str], *, action: str = REPORT
) -> dict[str, Any]:
    """Find deferred messages of an entity that no checkpoint names; a disposition that arrived too late leaves them.

    All queries that read the entity have to be stopped, and all their checkpoints given. No application may defer
    messages of the entity, because this function would find such messages too.

    Args:
        entity: A queue, or ``topic/subscriptions/name``.
        checkpoints: The checkpoints of all queries on the entity.
        options: The options for the connection.
        action: ``report``, which changes nothing, ``reactivate`` or ``dead-letter``.

    Returns:
        ``entity``, ``action``, ``messages`` (their number), and ``sequence_numbers`` of the first thousand.

    Raises:
        CheckpointError: A folder is not a checkpoint.
        OptionError: There is no such action.
    """
    _demand_action(action)
    place = place_of(parse(options, CONNECTION_OPTIONS))
    named: set[int] = set()
    for checkpoint in checkpoints:
        folder = Path(checkpoint) / "offsets"
        batches = batches_in(folder)
        if not batches:
            raise CheckpointError(f"There is no checkpoint of a stream in {checkpoint}: it has no offsets.")
        for batch in batches:
            for offset in claims_in(folder / str(batch)):
                named.update(*(members for key, members in offset.claim.items() if key.entity == entity))
    demand_reachable(place)
    with new_client(place) as client:
        strays = _strays(client, Key(entity), named)
        done = _released(client, place, Key(entity), strays, action, SWEPT)
    return {"entity": entity, "action": action, "messages": done, "sequence_numbers": strays[:ROWS_AT_ONCE]}


def _demand_action(action: str) -> None:
    if action not in (REACTIVATE, DEAD_LETTER, REPORT):
        raise OptionError(f"The action is {action!r}; it has to be {REACTIVATE}, {DEAD_LETTER} or {REPORT}.")


def batches_in(folder: Path) -> list[int]:
    """Return the numbers of the batches in a folder of a checkpoint; none if the folder cannot be read."""
    try:
        return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
    except OSError:
        return []


def claims_in(path: Path) -> list[ClaimOffset]:
    """Read the claims of one file of a checkpoint's offsets; claims of other sources are ignored.

    Raises:
        CheckpointError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            lines = file.read(FILE_BYTES_MAX).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"The file {path} cannot be read: {error}") from None
    if not lines or not lines[0].startswith("v"):
        raise CheckpointError(f"The file {path} holds no offsets of Spark.")
    found: list[ClaimOffset] = []
    for line in lines[2:]:
        try:
            form = json.loads(line)
        except ValueError:
            continue
        if isinstance(form, dict) and form.get("v") == 1 and "b" in form and "at" in form:
            found.append(ClaimOffset.from_json(form))
    return found


def _ours(client: ServiceBusClient, place: Place, offset: ClaimOffset) -> tuple[Claim, int]:
    """What of a claim is deferred by its query, and how many more are deferred by whomever."""
    engine = ClaimEngine(namespace_of(place), None, counted=counts_deferrals(place))
    engine.read(offset.to_json())
    seen: dict[Key, dict[int, Seen]] = {}
    for key, numbers in offset.claim.items():

        def work(key: Key = key, numbers: Mapping[int, int] = numbers) -> dict[int, Seen]:
            with open_receiver(client, key) as receiver:
                return {
                    message.sequence_number: seen_of(message)
                    for part in by_fragment(numbers).values()
                    for message in look(receiver, part)
                }

        seen[key] = retried(key, work, Clock(), SESSION_TIMEOUT_S)
    ours = engine.ours(offset, seen)
    deferred = sum(state.is_deferred for states in seen.values() for state in states.values())
    return ours, deferred - sum(map(len, ours.values()))


def _given_back(client: ServiceBusClient, place: Place, offset: ClaimOffset) -> int:
    """Give back what the broker has claimed for the batch after the newest one, which was never written down."""
    if offset.stream is None or not is_duobus(place):
        return 0
    claims = BrokerClaims(
        partial(open_receiver, client),
        partial(open_receiver, client),
        lambda key, work: retried(key, work, Clock(), SESSION_TIMEOUT_S),
        Clock(),
    )
    try:
        entities = sorted({key.entity for key in offset.claim})
        return claims.free_all(entities, offset.claim_id(offset.batch + 1, 0)[:-1])
    except Unsupported:
        return 0


def _strays(client: ServiceBusClient, key: Key, named: set[int]) -> list[int]:
    found: list[int] = []
    with told(key.entity), open_receiver(client, key) as receiver:
        number = 1
        while page := peek(receiver, number, PEEK):
            found += [one.sequence_number for one in page if is_deferred(one) and one.sequence_number not in named]
            number = page[-1].sequence_number + 1
    return found


def _released(client: ServiceBusClient, place: Place, key: Key, numbers: list[int], action: str, why: str) -> int:
    if action == REPORT or not numbers:
        return len(numbers)
    if action == DEAD_LETTER:
        told_why = "No query of Spark finishes its claim.", "It was freed by 'duobus spark'."
        return dead_letter_numbers(client, key, dict.fromkeys(numbers, (why, " ".join(told_why))))
    done = 0
    with told(key.entity), open_receiver(client, key) as receiver:
        if action == REACTIVATE:
            _demand_queue(key)
            copies = Reactivation(place, key.entity)
            with open_sender(client, key) as sender:
                for message in _locked(receiver, key, numbers):
                    # The copy first: what ends in between is there twice, under one id, and not lost.
                    sender.send_messages(copies.copy(message))
                    receiver.complete_message(message)
                    done += 1
        else:
            for message in _locked(receiver, key, numbers):
                receiver.complete_message(message)
                done += 1
    return done


def _demand_queue(key: Key) -> None:
    name, sub_queue = split_name(key.entity)
    if sub_queue is not None or "/subscriptions/" in name.lower():
        raise OptionError(
            f"Messages of '{key.entity}' cannot be sent to it again: what is sent to a topic goes to all of its "
            f"subscriptions. Use the action {DEAD_LETTER}, and resubmit them from the dead-letter queue."
        )
