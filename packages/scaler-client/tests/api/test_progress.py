"""The bar: what it counts and where it shows."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from scaler_client.api.client import Client
from scaler_client.api.progress import ProgressBar


def add_one(value: int) -> int:
    return value + 1


def test_the_last_word_is_how_it_ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with ProgressBar(lambda: (3, 4)):
        pass
    assert "3/4" in capsys.readouterr().err


def test_a_widget_is_as_wide_as_its_total_and_keeps_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    auto: Any = pytest.importorskip("tqdm.auto")
    bars: list[Any] = []

    class Widget(auto.tqdm):  # type: ignore[misc]
        """What matters of `tqdm.notebook.tqdm`: the widget's `max` is what `total` was at first, or is in `reset`."""

        def __init__(self, **words: Any) -> None:
            super().__init__(**{**words, "file": io.StringIO(), "disable": False})
            self.max = self.total or 1
            self.begun = self.start_t
            bars.append(self)

        def reset(self, total: float | None = None) -> None:
            self.max = total
            super().reset(total)

    monkeypatch.setattr(auto, "tqdm", Widget)
    now = [3, 16]
    bar = ProgressBar(lambda: (now[0], now[1]))
    bar._refresh()
    assert (bars[0].n, bars[0].max) == (3, 16)
    now[:] = 40, 100  # as of a map that goes on being submitted
    with bar:
        pass
    assert (bars[0].n, bars[0].max, bars[0].start_t) == (40, 100, bars[0].begun)


def test_where_nobody_looks_nothing_is_written(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    assert client.map(add_one, range(5), progress=True) == [1, 2, 3, 4, 5]
    assert client.get({"a": (add_one, 1)}, ["a"], progress=True) == {"a": 2}
    assert capsys.readouterr().err == ""


def test_without_tqdm_it_says_what_to_install(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    missing: dict[str, Any] = {"tqdm": None, "tqdm.auto": None}
    for name, module in missing.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(ImportError, match=r"pip install scaler\[progress\]"):
        client.map(add_one, [1], progress=True)


def test_there_is_no_bar_for_what_is_not_waited_for(client: Client) -> None:
    with pytest.raises(ValueError, match="progress=True needs block=True"):
        client.get({"a": 1}, ["a"], block=False, progress=True)
