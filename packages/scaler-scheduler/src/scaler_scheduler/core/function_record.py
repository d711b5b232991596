"""FunctionRecord: what is known of one function."""

from __future__ import annotations

from dataclasses import field

from scaler_protocol.lazy_dataclass import dataclass

SMOOTHING = 0.2
"""Weight of the newest duration in a function's running mean."""


class _Referable:
    """Adds the slot for weak references, which `dataclass(slots=True)` lacks before Python 3.11."""

    __slots__ = ("__weakref__",)


@dataclass(slots=True, eq=False)
class FunctionRecord(_Referable):
    """One function: its bytes if they are kept, and the mean duration of a call in seconds once measured."""

    id: bytes
    name: str = ""
    body: bytes | None = None
    stored: bool = False
    """Whether the body is a reference into object storage."""
    seconds: float | None = None
    submitted: int = 0
    """Calls submitted since the record was made."""
    runs: int = 0
    """Runs that ended, and how long all of them took."""
    run_seconds: float = 0.0
    result_size: int = 0
    """The greatest class of its results that were in object storage, of those of `scaler_protocol.result_sizes`."""
    long_share: float = 0.0
    """The share of long results among those of its latest runs that were granted one: a running mean, 0 to 1."""
    asking: set[bytes] = field(default_factory=set)
    """Identities of agents that wait for the bytes."""
    sessions: set[int] = field(default_factory=set)
    """Numbers of sessions that submitted calls of it; some of them may have ended."""
    waiting_tasks: dict[int, dict[int, None]] = field(default_factory=dict)
    """HELD tasks that cannot be dispatched until the bytes have arrived, by the number of their session."""

    def measured(self, seconds: float, runs: int) -> None:
        """Add the duration of a call, which stands for so many runs, to the mean and the sums."""
        self.runs += runs
        self.run_seconds += runs * seconds
        if self.seconds is None:
            self.seconds = seconds
        else:
            self.seconds += SMOOTHING * (seconds - self.seconds)

    def lasted(self, seconds: float) -> None:
        """A call had taken so many seconds, which is more than was expected, when it was stopped."""
        if self.seconds is None:
            self.seconds = seconds
        else:
            self.seconds += SMOOTHING * max(0.0, seconds - self.seconds)
