"""The tier Premium: every new entity is partitioned, over two fragments (HTTP contract A.6)."""

from __future__ import annotations

from gateway_kit import in_loop, serving
from http_kit import Http, entry

from duobus.model.description import QueueDescription
from duobus.model.http_options import HttpOptions
from duobus.model.quotas import Quotas
from duobus.model.tiers import PREMIUM


@in_loop
async def test_every_new_entity_has_two_fragments_and_one_that_must_not_is_refused() -> None:
    quotas = Quotas(partitioned_entities=1)
    async with serving(QueueDescription(name="old"), http=HttpOptions(tier=PREMIUM), quotas=quotas, stores=2) as server:
        http = await Http.connect(server.port("http") or 0)
        for path, kind in (("/q1", "QueueDescription"), ("/t1", "TopicDescription"), ("/q2", "QueueDescription")):
            made = await http.ask("PUT", path, entry(kind=kind))
            assert made.status == 201, made.text
            assert "<EnablePartitioning>true</EnablePartitioning>" in made.text
            assert "<MaxMessageSizeInKilobytes>1024</MaxMessageSizeInKilobytes>" in made.text
            refused = await http.ask("PUT", f"{path}x", entry("<EnablePartitioning>false</EnablePartitioning>", kind))
            assert refused.status == 400
            assert "premium tier is partitioned" in refused.text
        home = server.unit.namespace("ns")
        assert {len(home.queues[name].fragments) for name in ("q1", "q2")} == {len(home.topics["t1"].fragments)} == {2}
        assert len({handle.broker.store_id for handle in home.queues["q1"].fragments}) == 2
        # What was there before stays as it is, and can be changed.
        assert (await http.ask("PUT", "/old", entry(), {"If-Match": "*"})).status == 200
        assert "<EnablePartitioning>false<" in (await http.ask("GET", "/old")).text
        for number in range(6):
            assert (await http.ask("POST", "/q1/messages", b"%d" % number)).status == 201
        bodies = [(await http.ask("DELETE", "/q1/messages/head?timeout=0")).body for _ in range(6)]
        assert sorted(bodies) == [b"%d" % number for number in range(6)]
