from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest
from kit_cluster import Cluster, running_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three servers over one catalog."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture(autouse=True)
def _sweep() -> Iterator[None]:
    """What the SDK leaves of a killed server is collected here, and not in somebody else's test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
