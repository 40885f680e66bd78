"""The list in docs/reference/http-coverage.md by number, with Java's administration client, unmodified, over TLS."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from kit_java import BUILD_LIMIT_S, Java, JavaBus

from duobus.auth import sign, sign_token
from kits.programs import LIMIT_S

# The first test of a run builds the programs; a program has its own limit.
pytestmark = [pytest.mark.timeout(2 * BUILD_LIMIT_S + 2 * LIMIT_S), pytest.mark.xdist_group("java")]

LENGTHS = (0, 1, 100, 101, 250)
RULE, PRIMARY, SECONDARY = "ops", "P" * 43 + "=", "S" * 43 + "="
REFUSED = "ClientAuthenticationException 401"

Item = Callable[..., Any]


@pytest.fixture
def item(java: Java, java_bus: JavaBus) -> Item:
    """Runs one item of the list."""

    def run(number: int, limit_s: float = LIMIT_S, **given: Any) -> Any:
        connection = java_bus.process.connection_string_tls
        given |= {"item": number, "connection": connection, "admin": java_bus.https}
        return java.run("f1", trust=java_bus.trust, limit_s=limit_s, **given)["found"]

    return run


def test_f1_03_lists_of_any_length_are_complete_and_in_order(item: Item) -> None:
    # Neither in order nor in one case. Queues of other tests may stand between them.
    prefix = uuid.uuid4().hex[:8]
    names = [f"{prefix}{'Nn'[index % 2]}{index * 7919 % 1000:03}" for index in range(max(LENGTHS))]
    # 500 entities, one after another, each with four syncs of a disk that other tests use: 7 s on an idle machine.
    found = item(3, limit_s=2 * LIMIT_S, names=names, lengths=LENGTHS, topic=f"{prefix}-counted")
    assert len(found) == 2 * len(LENGTHS)
    for number, queues, subscriptions in zip(LENGTHS, found[::2], found[1::2], strict=True):
        expected = sorted(names[:number], key=str.lower)
        assert [name for name in queues if name.startswith(prefix)] == expected
        assert subscriptions == expected


def test_f1_04_names_of_every_legal_form_are_found_in_any_case(item: Item) -> None:
    tail = uuid.uuid4().hex
    names = [tail[0], f"a/b.c-d_e/{tail}", tail + "x" * 228, f"x-servicebus-transfer/{tail}", f"Mixed/{tail}"]
    assert item(4, names=names) == [[name, True, ["$Default"], "$Default"] for name in names]


def test_f1_09_tokens_that_are_old_or_oddly_written_are_good_and_of_others_not(item: Item, java_bus: JavaBus) -> None:
    own = f"f1-{uuid.uuid4().hex}-orders"
    queues = [own, own + "2"]
    root = java_bus.credentials()
    now = int(time.time())

    def signed(path: str = "", rule: str = root["username"], key: str = root["password"], expires_s: int = 600) -> str:
        return sign_token(f"https://localhost/{path}", rule, key, now + expires_s)

    def connection(key: str) -> str:
        return f"Endpoint=sb://localhost;SharedAccessKeyName={RULE};SharedAccessKey={key}"

    resource = quote("https://localhost/", safe="").replace("%3A", "%3a").replace("%2F", "%2f")
    signature = quote(sign(root["password"], resource, str(now + 600)), safe="")
    fields = {"skn": root["username"], "se": now + 600, "sig": signature, "sr": resource}
    tokens = {
        "60 s too old": signed(expires_s=-60),
        "too old": signed(expires_s=-3600),
        "inside Bearer": f"Bearer {signed()}",
        "lower case, other order": "SharedAccessSignature " + "&".join(f"{name}={fields[name]}" for name in fields),
        "of the entity": signed(own),
        "of the entity's rule": signed(own, RULE, SECONDARY),
    }
    found = item(
        9,
        queues=queues,
        rule=RULE,
        primary=PRIMARY,
        secondary=SECONDARY,
        keys={"primary": connection(PRIMARY), "secondary": connection(SECONDARY), "wrong": connection("wrong")},
        tokens=tokens,
        token=signed(),
    )
    assert found == {
        "primary": [own, REFUSED],
        "secondary": [own, REFUSED],
        "wrong": [REFUSED, REFUSED],
        "60 s too old": queues,
        "too old": [REFUSED, REFUSED],
        "inside Bearer": queues,
        "lower case, other order": queues,
        "of the entity": [own, REFUSED],
        "of the entity's rule": [own, REFUSED],
        # With the port in the name of the namespace, which needs no policy.
        "place": queues,
    }
