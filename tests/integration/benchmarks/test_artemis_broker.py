"""The real Artemis as a peer, where a JDK, Maven and the pinned version can be had; otherwise skipped and counted."""

from pathlib import Path

import pytest

from benchmarks import artemis_peer
from benchmarks.load import workloads
from benchmarks.load.exchange import Limits


@pytest.mark.slow
def test_the_real_artemis_takes_every_message_of_every_workload_and_leaves_nothing_behind(tmp_path: Path) -> None:
    try:
        program = artemis_peer.build()
    except artemis_peer.NotBuilt as error:
        pytest.skip(str(error))
    peer = artemis_peer.ArtemisPeer(data_root=tmp_path, program=program)
    try:
        peer.start()
        assert peer.version == "2.44.0"
        for name in ("A100", "B", "C1x1", "D", "M20"):
            result = workloads.run(peer.target, workloads.parse(name, Limits(messages=200, stall=10.0)))
            assert result.messages == 200
    finally:
        peer.stop()
    assert list(tmp_path.iterdir()) == []
