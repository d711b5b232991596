"""What the Overview shows before its scripts are there."""

from __future__ import annotations

from scaler_ui.model.findings import Finding, Severity
from scaler_ui.web.overview_page import preview


def test_the_preview_is_text_whatever_names_are() -> None:
    finding = Finding(Severity.ERROR, "3 workers died on host <b>&amp;</b>.", "<b>&amp;</b>", "host")
    html = preview([finding], {"running": "<i>"})
    assert '<div class="is-error">3 workers died on host &lt;b&gt;&amp;amp;&lt;/b&gt;.</div>' in html
    assert '<div class="value">&lt;i&gt;</div>' in html and html.count('figure"') == 1
