"""The futures of a graph by key, which notebooks show as one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from scaler_client.notebook import Bar, Card, ShownInNotebooks, page_row


class GraphFutures(dict[Hashable, Any], ShownInNotebooks):
    """The futures of requested nodes by key; pickled, or copied, it is a plain dictionary."""

    def __init__(self, futures: Mapping[Hashable, Any], first_task: int, nodes: int) -> None:
        """Of a graph of so many calls, the first of which is this task."""
        super().__init__(futures)
        self._first, self._nodes = first_task, nodes

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def _card(self) -> Card:
        words = [future._word() for future in self.values()]
        bar = Bar(words.count("finished"), words.count("failed"), words.count("cancelled"), len(words))
        ended = f"{len(words) - bar.open:,} of {len(words):,}"
        counts = {"failed": bar.failed, "cancelled": bar.cancelled}
        state = "pending" if bar.open else next((word for word, count in counts.items() if count), "finished")
        rows = {
            "results": ", ".join([ended, *(f"{count:,} {word}" for word, count in counts.items() if count)]),
            "calls": page_row(f"graph/of:{self._first:x}", f"{self._nodes:,}") if self._nodes else "",
        }
        return Card("Scaler graph", state, rows, bar, not bar.open)
