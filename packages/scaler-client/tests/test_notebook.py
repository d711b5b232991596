"""What notebooks show."""

from __future__ import annotations

import re
import sys
import threading
import weakref
from typing import Any

import pytest

from scaler_client.notebook import (
    DASHBOARD_VARIABLE,
    Bar,
    Card,
    Link,
    ShownInNotebooks,
    dashboard_of,
    dashboard_row,
    monitor_of,
    page_row,
    served_pages,
)
from support.waiting import wait_until


def test_nothing_in_a_card_is_taken_for_html() -> None:
    shown = Card("<t>", "<s>", {"<a>": "&"}, Bar(1, 0, 0, 4)).html
    assert [each for each in ("&lt;t&gt;", "&lt;s&gt;", "&lt;a&gt;", "&amp;") if each in shown] and "<a" not in shown
    assert shown.count("<div") == shown.count("</div>") and shown.count("<span") == shown.count("</span>")


def test_a_bar_has_a_part_for_each_way_to_end() -> None:
    shown = Card("t", "pending", {}, Bar(2, 1, 1, 8)).html
    assert [float(width) for width in re.findall(r"width:([\d.]+)%", shown)] == [25, 12.5, 12.5]
    assert 'aria-valuemax="8" aria-valuenow="4"' in shown


def test_where_the_monitor_is() -> None:
    assert monitor_of("tcp://127.0.0.1:2345") == "tcp://127.0.0.1:2347"
    assert monitor_of("ipc:///tmp/here") == "ipc:///tmp/here.2"


def test_links_are_shown_without_tokens_and_empty_values_not_at_all() -> None:
    shown = Card("t", "", {"pages": Link("<here>", 'http://127.0.0.1/?a=1&b="2'), "empty": ""}).html
    assert 'href="http://127.0.0.1/?a=1&amp;b=&quot;2"' in shown and ">&lt;here&gt;</a>" in shown
    assert "empty" not in shown


def test_pages_are_those_of_the_local_cluster_or_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DASHBOARD_VARIABLE, raising=False)
    assert dashboard_row("tcp://127.0.0.1:2345") == "" and page_row("task/ff", "ff") == "ff"
    monkeypatch.setenv(DASHBOARD_VARIABLE, "https://scaler.example.org/desk/?token=x")
    assert dashboard_row(None) == Link("https://scaler.example.org/desk/", "https://scaler.example.org/desk/?token=x")
    assert page_row("task/ff", "ff") == Link("ff", "https://scaler.example.org/desk/task/ff?token=x")
    monkeypatch.setitem(served_pages, "tcp://127.0.0.1:2345", "http://127.0.0.1:8081/?token=y")
    assert dashboard_row("tcp://127.0.0.1:2345") == Link("http://127.0.0.1:8081/", "http://127.0.0.1:8081/?token=y")
    assert page_row("task/ff", "ff") == "ff", "whose task it is, is not known"


@pytest.mark.parametrize(
    "said",
    ["localhost:8081", "x", "http://[", "http://h:99999/", "http://", "//h/", "javascript:x()", "http://h/\n", " "],
)
def test_an_environment_that_names_no_pages_is_told_and_breaks_no_card(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DASHBOARD_VARIABLE, f"{said}?token=secret")
    told = f"SCALER_DASHBOARD is {said!r}: write where the pages are, such as http://host:8081/"
    with pytest.raises(ValueError) as raised:
        dashboard_of("tcp://127.0.0.1:2345")
    assert str(raised.value) == told
    assert dashboard_row("tcp://127.0.0.1:2345") == told and page_row("task/ff", "ff") == "ff"
    monkeypatch.setitem(served_pages, "tcp://127.0.0.1:2345", "http://127.0.0.1:8081/?token=y")
    assert dashboard_of("tcp://127.0.0.1:2345") == "http://127.0.0.1:8081/?token=y"


class Thing(ShownInNotebooks):
    """Something that changes."""

    def __init__(self) -> None:
        self.card = Card("thing", "pending", {"n": "1"})

    def _card(self) -> Card:
        return self.card


def test_cards_follow_what_they_show_where_there_are_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    thing = Thing()
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert thing._repr_mimebundle_() == {}, "outside of a notebook nothing is made"
    from IPython.core.formatters import DisplayFormatter
    from ipywidgets import HTML, Widget  # type: ignore[import-untyped]

    made: list[Any] = []
    monkeypatch.setattr(Widget, "_widget_construction_callback", made.append)
    shown, _ = DisplayFormatter().format(thing)  # type: ignore[no-untyped-call]
    assert "application/vnd.jupyter.widget-view+json" in shown and shown["text/html"] == thing.card.html
    [widget] = [each for each in made if isinstance(each, HTML)]
    assert widget.value == thing.card.html
    thing.card = Card("thing", "finished", {"n": "2"}, is_final=True)
    wait_until(lambda: widget.value == thing.card.html, "the card is the new one")
    followers = [each for each in threading.enumerate() if each.name == "scaler-notebook"]
    wait_until(lambda: not any(map(threading.Thread.is_alive, followers)), "a final card is followed no more")
    assert thing._repr_mimebundle_() == {}


def test_a_thing_is_not_kept_by_its_card() -> None:
    import IPython  # noqa: F401  # as in a notebook

    thing = Thing()
    assert thing._repr_mimebundle_()
    gone = weakref.ref(thing)
    del thing
    wait_until(lambda: gone() is None, "the thing is gone")
    running = [each for each in threading.enumerate() if each.name == "scaler-notebook"]
    wait_until(lambda: not any(map(threading.Thread.is_alive, running)), "it is followed no more")
