"""A task that has failed, as it is published. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Status
from scaler_protocol.tracebacks import headline

FAILURES = 2_000
"""Failures that are kept."""
NO_RESULT = "no result"
"""What stands for the type of exception of a task that has failed without one: its worker died, for example."""
UNKNOWN_TYPE = "unknown"
"""What stands for it where the text does not say the type: the error is too long for monitors, for example."""

cached_headline = lru_cache(2 * FAILURES)(headline)


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """A task that raised or could not run; `text` is the traceback or the error."""

    time: float
    task: int
    function: str
    session: int
    agent: int
    status: int
    text: str

    @property
    def headline(self) -> str:
        """The exception in one line."""
        return cached_headline(self.text)

    @property
    def exception(self) -> str:
        """The type of the exception, as the traceback names it."""
        if self.status != Status.RAISED:
            return NO_RESULT
        kind = self.headline.partition(":")[0]
        return UNKNOWN_TYPE if not kind or " " in kind else kind

    @property
    def kind(self) -> tuple[str, str]:
        """Function and type of exception."""
        return self.function, self.exception


class LastFailures(dict[int, TaskFailure]):
    """The tasks that failed last, by id, oldest first. A kind with many failures displaces its own before others."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[tuple[str, str]] = Counter()
        self.displaced: dict[str, float] = {}
        """When the last failure was that is not known any more, by function; of the last FAILURES functions."""

    def add(self, failures: Iterable[TaskFailure]) -> None:
        """Add failures, or renew them, and forget what is more than FAILURES."""
        for failure in failures:
            self._forget(failure.task)
            self[failure.task] = failure
            self._counts[failure.kind] += 1
            if len(self) > FAILURES:
                [(most, _)] = self._counts.most_common(1)
                oldest = next(each for each in self.values() if each.kind == most)
                self._forget(oldest.task)
                self.has_lost(oldest.function, oldest.time)

    def has_lost(self, function: str, time: float) -> None:
        """Failures of a function until this time are not known, so that there were more than are counted."""
        self.displaced[function] = max(time, self.displaced.pop(function, time))
        if len(self.displaced) > FAILURES:
            del self.displaced[next(iter(self.displaced))]

    def count(self, kind: tuple[str, str]) -> int:
        """How many of a kind there are."""
        return self._counts[kind]

    def _forget(self, task: int) -> None:
        if (known := self.pop(task, None)) is not None:
            self._counts[known.kind] -= 1
            if not self._counts[known.kind]:
                del self._counts[known.kind]
