"""One pair of a pattern and a fault: so many rounds in its time, and what clients and operators saw of it.

In a round the network is cut in the pattern and the fault strikes; then both are taken back. It counts how long it
takes from there until every server serves and every queue can be asked through every server.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from kit_cluster import clock_words, write_clock
from kit_cuts import PLAIN, TROUBLE, NetworkedCluster, end_of, make_queues
from kit_features import FLOWS, KEYLESS, LATER, ONCE, SINK, FeatureTraffic, look_at_all, make_partitioned
from kit_network import Network, NetworkedPostgres, running_network
from kit_patterns import Ends, cut_network
from kit_strikes import CLOCKS, STRIKES, tolerance_s

from duobus.testing.postgres_server import PostgresServer
from kits.client_record import ClientRecord

SERVERS: Final = 3
#: The database with the catalog, and the one with further stores.
DATABASES: Final = ("catalog", "other")
STORES_EACH: Final = 3
#: How long a network stays cut, longer than a lease (2.5 s) and than a silent connection is believed in (3 s), seconds.
CUT_S: Final = (4.0, 8.0)
#: When the fault strikes after the cut; how long all is well between two rounds.
STRIKE_AFTER_S: Final = (0.0, 2.0)
WELL_S: Final = (0.5, 2.0)
#: All has to be served again after so long. The bound is far off, and only tells what never comes from what takes long:
#: how long it took is a figure of the result.
SERVED_S: Final = 90.0
#: The traffic is slow, so that two processors do for the servers, the databases and the clients.
PAUSE_S: Final = 0.4
DRAIN_S: Final = 90.0
#: Longer than a lock: what was settled and comes again nevertheless comes by then.
LINGER_S: Final = 6.0
_LOOKED_AT: Final = (*PLAIN, KEYLESS, ONCE, LATER, SINK)
#: As well: the health of a server that starts may lack its stores.
_TROUBLE: Final = (*TROUBLE, KeyError)


class PairCluster(NetworkedCluster):
    """Three servers over two databases, each of the five at an end of the network; clocks of servers can be wrong."""

    def __init__(self, folder: Path, databases: tuple[NetworkedPostgres, ...], network: Network) -> None:
        super().__init__(folder, databases[0], network, servers=SERVERS)
        self.databases: tuple[PostgresServer, ...] = databases
        self._stores, self._elsewhere = STORES_EACH, STORES_EACH * (len(databases) - 1)
        self.ends = Ends(tuple(map(end_of, self.servers)), DATABASES)
        for number in self.servers:
            write_clock(self.clock_file(number), 0.0)

    def clock_file(self, number: int) -> Path:
        """The file that tells by how much a server's clock is off."""
        return self._folder / f"clock-{number}"

    def words(self, number: int) -> list[str]:
        """See Cluster."""
        return [*super().words(number), *clock_words(self.clock_file(number))]

    def _addresses(self, number: int) -> list[str]:
        stores = [word for database in self.databases[1:] for word in ["--store", database.url()] * STORES_EACH]
        return [*super()._addresses(number), *stores]

    def revive(self) -> int:
        """Start servers again that have ended by themselves, as a supervisor does; return how many."""
        ended = [number for number in self.servers if self._processes[number].poll() is not None]
        for number in ended:
            self.start(number)
        return len(ended)

    def await_all_served(self, limit_s: float) -> dict[str, Any]:
        """Wait until all is served.

        Returns:
            The seconds until all stores were open, evenly spread, and until all was served, None where that took longer
            than the limit; how many servers had ended by themselves.
        """
        begun = time.monotonic()
        found: dict[str, Any] = {"spreadS": None, "servedS": None, "ended": 0}
        while found["servedS"] is None and time.monotonic() < begun + limit_s:
            found["ended"] += self.revive()
            try:
                shares = sorted(map(len, self.serving().values()))
                if sum(shares) == self._stores + self._elsewhere and shares[-1] - shares[0] <= 1:
                    found["spreadS"] = found["spreadS"] or round(time.monotonic() - begun, 2)
                    self.look()
                    found["servedS"] = round(time.monotonic() - begun, 2)
            except _TROUBLE:
                pass
            time.sleep(0.1)
        return found

    def look(self) -> float:
        """Ask every queue through every server; return the seconds that it took, most of which the SDK sleeps."""
        begun = time.monotonic()
        with ThreadPoolExecutor() as threads:
            list(threads.map(self._look, self.servers))
        return time.monotonic() - begun

    def _look(self, number: int) -> None:
        with self.client(number, retry_total=0) as bus:
            look_at_all(bus, _LOOKED_AT)


@contextmanager
def running_pair_cluster(folder: Path) -> Iterator[PairCluster]:
    """A cluster that is gone afterwards; meanwhile this thread, and those that it starts, are at the hub."""
    ends = [*DATABASES, *map(end_of, range(SERVERS))]
    with running_network(ends) as network, network.inside("hub"):
        databases = tuple(NetworkedPostgres(network, name, folder / name, durable=True) for name in DATABASES)
        cluster = PairCluster(folder, databases, network)
        try:
            for database in databases:
                database.create()
                database.start()
            cluster.start_all()
            cluster.await_served()
            yield cluster
        finally:
            cluster.close()
            for database in databases:
                database.remove()


def play_pair(pattern: str, fault: str, seed: int, minutes: float, keep: Path | None = None) -> dict[str, Any]:
    """Play rounds for so long, and judge what clients observed.

    Args:
        pattern: How the network is cut; a name of PATTERNS.
        fault: What strikes meanwhile; a name of STRIKES.
        seed: Of what is left to chance.
        minutes: Without the start, and without what is received in the end.
        keep: A folder for histories and logs of servers if anything is found, or a server has ended by itself.
    """
    rng = random.Random(f"{pattern}:{fault}:{seed}")
    record = ClientRecord(tolerance_s=tolerance_s(fault), are_clocks_right=fault not in CLOCKS)
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="duobus-cuts-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        # PostgreSQL's processes are another user's.
        folder.chmod(0o755)
        with running_pair_cluster(folder) as cluster:
            make_queues(cluster)
            make_partitioned(cluster)
            traffic = FeatureTraffic(cluster, record, pause_s=PAUSE_S, drain_s=DRAIN_S, linger_s=LINGER_S)
            traffic.start()
            try:
                look_s = cluster.look()
                end = time.monotonic() + 60 * minutes
                while not rounds or (time.monotonic() < end and rounds[-1]["servedS"] is not None):
                    rounds.append(_play_round(cluster, pattern, fault, rng, record))
            finally:
                cluster.network.heal()
                traffic.stop()
            result = _result((pattern, fault, seed, minutes), record, rounds, traffic.surprises, look_s)
            if keep is not None and (result["found"] or result["ended"]):
                _keep(keep / f"{pattern}-{fault}-{seed}", cluster, record, result)
    return result


def _play_round(
    cluster: PairCluster, pattern: str, fault: str, rng: random.Random, record: ClientRecord
) -> dict[str, Any]:
    begun, sent = time.time(), record.counts[0]
    pause = threading.Event()
    pause.wait(rng.uniform(*WELL_S))
    after_s, cut_s = rng.uniform(*STRIKE_AFTER_S), rng.uniform(*CUT_S)
    with cut_network(cluster.network, pattern, cluster.ends, rng) as ways:
        pause.wait(after_s)
        with STRIKES[fault](cluster, rng):
            pause.wait(cut_s)
    healed = time.time()
    served = cluster.await_all_served(SERVED_S)
    return {
        "begunS": round(begun, 2),
        "healedS": round(healed, 2),
        "ways": [f"{one}>{other}" for one, other in ways],
        **served,
        "acknowledged": record.counts[0] - sent,
    }


def _result(
    pair: tuple[str, str, int, float],
    record: ClientRecord,
    rounds: list[dict[str, Any]],
    surprises: list[str],
    look_s: float,
) -> dict[str, Any]:
    acknowledged, received = record.counts
    found = record.faults()
    took = [one["servedS"] for one in rounds]
    if None in took:
        found["unserved"] = [f"not all was served {SERVED_S} s after round {len(took)}"]
    if surprises:
        found["surprises"] = surprises
    flows = Counter(text.split(":")[0] for text in record.sent)
    silent = [flow for flow in FLOWS if not flows[flow]]
    if silent:
        found["unsent"] = silent
    return {
        **dict(zip(("pattern", "fault", "seed", "minutes"), pair, strict=True)),
        "rounds": len(rounds),
        "acknowledged": acknowledged,
        "received": received,
        # Received, and of no grant is it known that it was settled: answers were lost, or clients cannot settle.
        "unsettled": len(
            {grant.text for grant in record.grants} - {grant.text for grant in record.grants if grant.is_settled}
        ),
        "flows": dict(sorted(flows.items())),
        "servedMaxS": max(SERVED_S if one is None else one for one in took),
        # What is in that of the questions themselves: so long they took before the first round.
        "lookS": round(look_s, 2),
        "ended": sum(one["ended"] for one in rounds),
        "found": {kind: len(texts) for kind, texts in found.items()},
        "examples": {kind: texts[:5] for kind, texts in found.items()},
        "details": rounds,
    }


def _keep(folder: Path, cluster: PairCluster, record: ClientRecord, result: dict[str, Any]) -> None:
    """Write down what tells how it came to what was found."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {text for kind in record.faults().values() for text in kind}
    (folder / "history.json").write_text(json.dumps({**result, "grants": record.about(texts)}, indent=1))
    for number in cluster.servers:
        shutil.copy(cluster.folder_of(number) / "log", folder / f"server-{number}.log")
