"""A task that has failed, as it is published. Pure."""

from __future__ import annotations

from functools import lru_cache

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Status
from scaler_protocol.tracebacks import headline

FAILURES = 2_000
"""Failures that are kept."""
NO_RESULT = "no result"
"""What stands for the type of exception of a task that has failed without one: its worker died, for example."""

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
        return self.headline.partition(":")[0] or NO_RESULT
