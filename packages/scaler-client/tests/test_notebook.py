"""What notebooks show."""

from __future__ import annotations

import pytest

from scaler_client.notebook import (
    DASHBOARD_VARIABLE,
    Link,
    dashboard_row,
    html_table,
    monitor_of,
    served_pages,
    task_row,
)


def test_nothing_in_a_table_is_taken_for_html() -> None:
    assert html_table("<t>", {"<a>": "&"}) == (
        "<table><caption>&lt;t&gt;</caption>"
        '<tr><th style="text-align:left">&lt;a&gt;</th><td style="text-align:left">&amp;</td></tr></table>'
    )


def test_where_the_monitor_is() -> None:
    assert monitor_of("tcp://127.0.0.1:2345") == "tcp://127.0.0.1:2347"
    assert monitor_of("ipc:///tmp/here") == "ipc:///tmp/here.2"


def test_links_are_shown_without_tokens_and_empty_values_not_at_all() -> None:
    shown = html_table("t", {"pages": Link("<here>", 'http://127.0.0.1/?a=1&b="2'), "empty": ""})
    assert 'href="http://127.0.0.1/?a=1&amp;b=&quot;2"' in shown and ">&lt;here&gt;</a>" in shown
    assert "empty" not in shown


def test_pages_are_those_of_the_local_cluster_or_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DASHBOARD_VARIABLE, raising=False)
    assert dashboard_row("tcp://127.0.0.1:2345") == "" and task_row(255) == "ff"
    monkeypatch.setenv(DASHBOARD_VARIABLE, "https://scaler.example.org/desk/?token=x")
    assert dashboard_row(None) == Link("https://scaler.example.org/desk/", "https://scaler.example.org/desk/?token=x")
    assert task_row(255) == Link("ff", "https://scaler.example.org/desk/task/ff?token=x")
    monkeypatch.setitem(served_pages, "tcp://127.0.0.1:2345", "http://127.0.0.1:8081/?token=y")
    assert dashboard_row("tcp://127.0.0.1:2345") == Link("http://127.0.0.1:8081/", "http://127.0.0.1:8081/?token=y")
    assert task_row(255) == "ff", "whose task it is, is not known"
