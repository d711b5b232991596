"""What notebooks show."""

from __future__ import annotations

from scaler_client.api.notebook import html_table, monitor_of


def test_nothing_in_a_table_is_taken_for_html() -> None:
    assert html_table("<t>", {"<a>": "&"}) == (
        "<table><caption>&lt;t&gt;</caption>"
        '<tr><th style="text-align:left">&lt;a&gt;</th><td style="text-align:left">&amp;</td></tr></table>'
    )


def test_where_the_monitor_is() -> None:
    assert monitor_of("tcp://127.0.0.1:2345") == "tcp://127.0.0.1:2347"
    assert monitor_of("ipc:///tmp/here") == "ipc:///tmp/here.2"
