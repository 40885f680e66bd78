"""Lists of entities over several servers: which part of a page each of them has, and the feed of their parts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duobus.cluster.http.lists import Listed, ListPage, PageSegment, query_of
from duobus.gateway.rest.atom.paging import Page, cut
from duobus.gateway.rest.atom.xml import documents

URL = "http://bus/$Resources/queues"
DOORS = ("one:80", "two:80", "three:80")


def entry_of(name: str) -> str:
    """What a server tells of one of its entities."""
    return documents.entry(
        documents.QUEUE, "", url=f"http://bus/{name}", title=name, author="bus", created_at_ms=0, updated_at_ms=0
    )


def told_by(rows: list[Listed], part: PageSegment, prefix: str) -> str:
    """The feed of one server that is asked for its part."""
    own = [row.path for row in rows if row.address == part.address or row.is_everywhere]
    found, _ = cut(own, Page(part.skip, part.top, prefix), str)
    return documents.feed("Queues", [entry_of(name) for name in found], url=URL, following=None, updated_at_ms=0)


names = st.lists(
    st.text("abAB-_.9", min_size=1, max_size=4), unique_by=lambda name: name.lower(), min_size=1, max_size=30
)


@given(
    names=names,
    skip=st.integers(0, 30),
    top=st.integers(0, 10),
    prefix=st.sampled_from(["", "a", "b-"]),
    data=st.data(),
)
def test_the_parts_of_all_servers_make_the_page_that_one_server_would_tell(
    names: list[str], skip: int, top: int, prefix: str, data: st.DataObject
) -> None:
    rows = [Listed(name, data.draw(st.sampled_from(DOORS)), data.draw(st.booleans())) for name in names]
    page = Page(skip, top, prefix)
    alone, is_followed = cut(names, page, str)
    found = ListPage(rows, page)
    assert (found.paths, found.is_followed) == (alone, is_followed)
    feed = found.assemble("Queues", URL, [told_by(rows, part, prefix) for part in found.parts], 7)
    assert feed is not None
    assert [entry_of(name) in feed for name in alone] == [True] * len(alone)
    assert feed.count("<entry ") == len(alone)
    assert ('rel="next"' in feed) == is_followed


def test_a_page_is_told_in_order_with_two_links_when_another_follows() -> None:
    rows = [Listed(name, DOORS[index % 3]) for index, name in enumerate(["c", "a", "d", "b"])]
    page = Page(1, 2)
    found = ListPage(rows, page)
    assert found.assemble("Queues", URL, [told_by(rows, part, "") for part in found.parts], 7) == documents.feed(
        "Queues",
        [entry_of("b"), entry_of("c")],
        url=f"{URL}?$skip=1&$top=2",
        following=f"{URL}?$skip=3&$top=2",
        updated_at_ms=7,
    )


def test_a_page_on_which_something_is_missing_is_no_page() -> None:
    rows = [Listed("a", DOORS[0]), Listed("b", DOORS[1])]
    found = ListPage(rows, Page(0, 100))
    assert found.assemble("Queues", URL, [told_by(rows, found.parts[0], "")], 7) is None


def test_what_moves_is_on_the_page_and_has_no_server() -> None:
    rows = [Listed("a", DOORS[0]), Listed("b", "")]
    assert ListPage(rows, Page(0, 100)).is_moving
    assert not ListPage(rows, Page(0, 1)).is_moving


def test_a_server_is_asked_for_its_part_and_for_everything_else_that_the_client_has_asked() -> None:
    asked = {"$skip": "10", "$top": "5", "api-version": "2021-05", "$filter": "startswith(path, 'a') eq true"}
    assert query_of(asked, PageSegment("one:80", 3, 2)) == (
        "$skip=3&$top=2&api-version=2021-05&%24filter=startswith%28path%2C%20%27a%27%29%20eq%20true"
    )
