"""The representation of clients and local clusters in notebooks: a small HTML table."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from scaler_protocol.addresses import Address


def html_table(title: str, rows: Mapping[str, str]) -> str:
    """A table of names and values as HTML, escaped."""
    lines = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table><caption>{escape(title)}</caption>{lines}</table>"


def monitor_of(scheduler: str) -> str:
    """The default monitor address of a scheduler."""
    return str(Address.parse(scheduler).beside(2))
