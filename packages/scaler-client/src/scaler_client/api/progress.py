"""A bar that shows how far a `map` or a graph is: tqdm's, in terminals on stderr, in notebooks as a widget or text."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

REFRESH_SECONDS = 0.1


class ProgressBar:
    """Shown from `with` to its end; `count` says how many of how many are done. Raises ImportError without tqdm."""

    def __init__(self, count: Callable[[], tuple[int, int]]) -> None:
        try:
            from tqdm.auto import tqdm  # type: ignore[import-untyped]
        except ImportError as error:
            raise ImportError("progress=True needs tqdm: pip install scaler[progress]") from error
        self._count = count
        self._ended = threading.Event()
        # Where standard error is no terminal, and this no notebook, nobody would see it move.
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
            begun = bar.start_t
            bar.reset(total)  # a widget takes it from nowhere else
            bar.start_t = begun
        bar.n = done
        bar.refresh()
