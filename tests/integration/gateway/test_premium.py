"""The tiers Premium, ordinary and partitioned, and partitioning by default (PE3, PE8)."""

from __future__ import annotations

import pytest

from duobus.model.descriptions import QueueDescription
from duobus.model.options import HttpOptions
from duobus.model.quotas import Quotas
from duobus.model.tiers import PREMIUM_PARTITIONED, tier_named
from kits.gateway import in_loop, serving
from kits.http_client import Http, entry

_KINDS = (("q", "QueueDescription"), ("t", "TopicDescription"))


@in_loop
async def test_in_a_partitioned_namespace_every_new_entity_has_two_fragments_and_one_that_must_not_is_refused() -> None:
    quotas, options = Quotas(partitioned_entities=1), HttpOptions(tier=PREMIUM_PARTITIONED)
    async with serving(QueueDescription(name="old"), http=options, quotas=quotas, stores=2) as server:
        http = await Http.connect(server.port("http") or 0)
        for path, kind in (("/q1", "QueueDescription"), ("/t1", "TopicDescription"), ("/q2", "QueueDescription")):
            made = await http.ask("PUT", path, entry(kind=kind))
            assert made.status == 201, made.text
            assert "<EnablePartitioning>true</EnablePartitioning>" in made.text
            assert "<MaxMessageSizeInKilobytes>1024</MaxMessageSizeInKilobytes>" in made.text
            refused = await http.ask("PUT", f"{path}x", entry("<EnablePartitioning>false</EnablePartitioning>", kind))
            assert refused.status == 400
            assert "premium-partitioned tier is partitioned" in refused.text
        home = server.unit.namespace("ns")
        assert {len(home.queues[name].fragments) for name in ("q1", "q2")} == {len(home.topics["t1"].fragments)} == {2}
        assert len({handle.store.store_id for handle in home.queues["q1"].fragments}) == 2
        # What was there before stays as it is, and can be changed.
        assert (await http.ask("PUT", "/old", entry(), {"If-Match": "*"})).status == 200
        assert "<EnablePartitioning>false<" in (await http.ask("GET", "/old")).text
        for number in range(6):
            assert (await http.ask("POST", "/q1/messages", b"%d" % number)).status == 201
        bodies = [(await http.ask("DELETE", "/q1/messages/head?timeout=0")).body for _ in range(6)]
        assert sorted(bodies) == [b"%d" % number for number in range(6)]


@in_loop
async def test_a_size_is_told_of_the_fragments_that_an_entity_has() -> None:
    old = QueueDescription(name="old", enable_partitioning=True, max_size_in_megabytes=2048)
    async with serving(old, http=HttpOptions(tier=PREMIUM_PARTITIONED)) as server:
        http = await Http.connect(server.port("http") or 0)
        for path, kind in _KINDS:
            made = await http.ask("PUT", f"/{path}", entry("<MaxSizeInMegabytes>5120</MaxSizeInMegabytes>", kind))
            assert "<MaxSizeInMegabytes>10240<" in made.text
            # Sent back as it was read it stays.
            inside = "<MaxSizeInMegabytes>10240</MaxSizeInMegabytes>"
            again = await http.ask("PUT", f"/{path}", entry(inside, kind), {"If-Match": "*"})
            assert (again.status, "<MaxSizeInMegabytes>10240<" in again.text) == (200, True)
        # This one has had two fragments from its creation, as the namespace gives them; see the next test for others.
        assert server.unit.namespace("ns").queues["old"].partitions == 2
        assert "<MaxSizeInMegabytes>4096<" in (await http.ask("GET", "/old")).text


@in_loop
async def test_an_entity_keeps_the_fragments_that_it_has_and_their_size_in_a_namespace_of_another_tier() -> None:
    async with serving(http=HttpOptions(tier=PREMIUM_PARTITIONED)) as server:
        server.unit.partitions = 16
        http = await Http.connect(server.port("http") or 0)
        assert (await http.ask("PUT", "/old", entry())).status == 201
        server.unit.partitions = 2
        inside = "<MaxSizeInMegabytes>16384</MaxSizeInMegabytes>"
        assert (await http.ask("PUT", "/old", entry(inside), {"If-Match": "*"})).status == 200
        queue = server.unit.namespace("ns").queues["old"]
        assert (queue.partitions, queue.description.max_size_in_megabytes) == (16, 1024)
        assert "<MaxSizeInMegabytes>16384<" in (await http.ask("GET", "/old")).text


@pytest.mark.parametrize(
    ("tier", "is_by_default", "fragments"),
    [
        ("premium", False, (1, 1, 2)),
        ("premium", True, (2, 1, 2)),
        ("standard", True, (16, 1, 16)),
        ("all", False, (1, 1, 16)),
    ],
)
@in_loop
async def test_an_entity_is_partitioned_as_asked_and_as_the_setting_has_it_where_nobody_says(
    tier: str, is_by_default: bool, fragments: tuple[int, ...]
) -> None:
    """PE9."""
    options = HttpOptions(tier=tier_named(tier, partition_by_default=is_by_default))
    async with serving(http=options) as server:
        http = await Http.connect(server.port("http") or 0)
        for inside in ("", *(f"<EnablePartitioning>{word}</EnablePartitioning>" for word in ("false", "true"))):
            for path, kind in _KINDS:
                made = await http.ask("PUT", f"/{path}{len(inside)}", entry(inside, kind))
                assert made.status == 201, made.text
        home = server.unit.namespace("ns")
        for entities in (home.queues, home.topics):
            made_now = [entity for name, entity in entities.items() if name[1:]]
            assert tuple(entity.partitions for entity in made_now) == fragments
