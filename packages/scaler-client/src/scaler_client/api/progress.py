"""The progress bar of `map` and `get`: tqdm's, on standard error in terminals, a widget or text in notebooks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

REFRESH_SECONDS = 0.1


class ProgressBar:
    """Shown during a `with` block; `count` returns the done calls and all calls. Raises ImportError without tqdm."""

    def __init__(self, count: Callable[[], tuple[int, int]]) -> None:
        try:
            from tqdm.auto import tqdm  # type: ignore[import-untyped]
        except ImportError as error:
            raise ImportError("progress=True needs tqdm: pip install scaler[progress]") from error
        self._count = count
        self._ended = threading.Event()
        # disable=None shows the bar only if standard error is a terminal.
        self._bar: Any = tqdm(total=0, disable=False if "ipykernel" in sys.modules else None)
        self._thread = threading.Thread(target=self._run, name="scaler-progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self._refresh()
        self._bar.close()

    def _run(self) -> None:
        while not self._ended.wait(REFRESH_SECONDS):
            self._refresh()

    def _refresh(self) -> None:
        bar = self._bar
        if bar.disable:
            return
        done, total = self._count()
        if total != bar.total:
            started = bar.start_t
            bar.reset(total)  # the only way to set the total of a widget
            bar.start_t = started
        bar.n = done
        bar.refresh()
