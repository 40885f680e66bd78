"""Which tests share a process when they run in several (``--dist loadgroup``)."""

from __future__ import annotations

from typing import Final

import pytest

#: Fixtures that are costly enough for one process alone: a JVM takes seconds to start, and a gigabyte.
ALONE: Final = ("spark",)


# Before xdist looks at the groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        group = group_of(item)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))


def group_of(item: pytest.Item) -> str | None:
    """The group of a test: those with the session of Spark, and those of a module that share what it has started."""
    for name in ALONE:
        if name in getattr(item, "fixturenames", ()):
            return name
    found = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    if any(definitions[-1].scope == "module" for definitions in found.values()):
        return item.nodeid.partition("::")[0]
    return None
