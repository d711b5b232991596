"""Addresses of pages, and what their queries ask of a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler_protocol.ids import worker_name
from scaler_ui.model.addresses import (
    PageRequest,
    TableAddress,
    address,
    names_in,
    read_number,
    read_task,
    read_worker,
)

TABLE = TableAddress(
    PageRequest(order="since"),
    ("since", "duration"),
    choices={"state": ("raised", "waiting")},
    filters=("state", "function", "client"),
)
LONG = "9" * 5000
"""More digits than Python takes for a number."""
PRINTABLE = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), min_size=1, max_size=9)


@settings(max_examples=50)
@given(st.lists(PRINTABLE | st.sampled_from([".", "..", "..;", ".;;", ";"]), min_size=1, max_size=3))
def test_names_with_any_character_are_found_again(names: list[str]) -> None:
    made = address("function", *names)
    assert names_in(made) == ["function", *names]
    assert made.isascii() and not set(made) & set(' ?#"<>\\')
    assert not {".", ".."} & set(made.split("/")), "browsers would take these for folders"


def test_tasks_and_workers_are_named() -> None:
    assert [read_task(name) for name in ("1f", "xyz", "-1", "1" + 16 * "0", "")] == [31, None, None, None, None]
    assert read_worker(worker_name("vm-2:78", 100)) == ("vm-2:78", 100)
    assert [read_worker(name) for name in ("vm", "vm-x", "-5", "vm-²", LONG)] == [None] * 5
    assert [read_number(name) for name in ("12", LONG, "", "-1", "²")] == [12, None, None, None, None]
    assert address("tasks", state="raised", function="a b", client="") == "/tasks?state=raised&function=a%20b"


def test_a_query_says_what_is_shown() -> None:
    query = "state=raised&function=m:f&sort=-duration&page=3&rows=25"
    asked = PageRequest(50, 25, "duration", True, "", "raised", "m:f")
    assert TABLE.read(query) == (asked, [])
    assert TABLE.read(TABLE.write("", asked)) == (asked, [])
    assert TABLE.write("dark=1", asked) == "dark=1&state=raised&function=m:f&sort=-duration&rows=25&page=3"
    assert TABLE.read("") == (TABLE.default, []) and TABLE.write(query, TABLE.default) == ""
    assert TABLE.write("", replace(TABLE.default, descending=False)) == "sort=since"


@settings(max_examples=50)
@given(st.builds(
    PageRequest, st.integers(0, 99).map(lambda page: 50 * page), st.just(50), st.sampled_from(("since", "duration")),
    st.booleans(), st.text(), st.sampled_from(("", "raised")), st.text(), st.text(),
))  # fmt: skip
def test_every_request_is_read_as_it_was_written(asked: PageRequest) -> None:
    for table in (TABLE, replace(TABLE, prefix="needs.")):
        assert table.read(table.write("sort=-other&x=1", asked)) == (asked, [])


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("sort=-size", "sort=-size: rows are sorted by since, duration"),
        ("rows=7", "rows=7: a page has 25, 50, 100 rows"),
        ("page=0", "page=0: pages are numbered from 1"),
        ("page=x", "page=x: pages are numbered from 1"),
        (f"page={LONG}", f"page={LONG}: pages are numbered from 1"),
        ("state=gone", "state=gone: states are raised, waiting"),
        ("kind=worker", "kind=worker: this table has no such filter"),
        ("host=vm", "host=vm: this table has no such filter"),
    ],
)
def test_what_means_nothing_is_told_and_left_out(query: str, said: str) -> None:
    assert TABLE.read(f"text=a&{query}") == (replace(TABLE.default, text="a"), [said])


def test_a_browser_turns_to_pages_that_there_are() -> None:
    asked = replace(TABLE.default, text="a")
    turned = TABLE.turned(asked, {"rowsPerPage": 25, "page": 3, "sortBy": "duration", "descending": False})
    assert turned == PageRequest(50, 25, "duration", False, "a")
    odd: dict[str, Any]
    for odd in {}, {"rowsPerPage": 10**9, "page": -1, "sortBy": "size"}, {"rowsPerPage": [], "page": "x"}:
        assert replace(TABLE.turned(asked, odd), descending=True) == asked


def test_tables_of_one_page_have_prefixes_of_their_own() -> None:
    needs = replace(TABLE, prefix="needs.")
    query = needs.write("sort=duration", replace(TABLE.default, order="duration"))
    assert query == "sort=duration&needs.sort=-duration"
    assert needs.read(query)[0].descending and not TABLE.read(query)[0].descending
    assert unquote(needs.write(query, needs.default)) == "sort=duration"
