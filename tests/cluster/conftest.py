from __future__ import annotations

from collections.abc import Iterator

import pytest
from kit_cluster import Cluster, running_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three servers over one catalog."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found
