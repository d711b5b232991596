"""Splits messages about tasks of several sessions into one message per session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from scaler_protocol.ids import SESSION_BITS
from scaler_protocol.messages import Done, Ended, NeedInputs, NeedTasks, Output, agent_columns
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import PROFILE

T = TypeVar("T")
ByTask = Done | Ended | Output | NeedInputs | NeedTasks


def by_session(message: ByTask) -> Iterator[tuple[int, ByTask]]:
    """Yield session and message; a message of a single session is not copied."""
    sessions: dict[int, list[int]] = {}
    for position, task in enumerate(message.tasks):
        sessions.setdefault(task >> SESSION_BITS, []).append(position)
    if len(sessions) == 1:
        yield next(iter(sessions)), message
        return
    cut = _CUTS[type(message)]
    for session, positions in sessions.items():
        yield session, cut(message, positions)


def _pick(column: Sequence[T], positions: Sequence[int]) -> list[T]:
    return [column[position] for position in positions] if column else []


def cut_done(done: Done, positions: Sequence[int]) -> Done:
    """A Done with the rows at these positions."""
    stored, profiles, size = set(done.stored), done.profiles, PROFILE.size
    return Done(
        _pick(done.tasks, positions),
        _pick(done.statuses, positions),
        Payloads(_pick(done.results, positions)),
        _pick(done.runs, positions),
        [new for new, position in enumerate(positions) if position in stored],
        b"".join(profiles[position * size : (position + 1) * size] for position in positions),
        *(agent_columns(done.agent_of(position) for position in positions) if done.agents else ()),
    )


_CUTS: dict[type, Callable[[Any, Sequence[int]], ByTask]] = {
    Done: cut_done,
    Ended: lambda m, at: Ended(_pick(m.tasks, at)),
    Output: lambda m, at: Output(_pick(m.tasks, at), _pick(m.streams, at), Payloads(_pick(m.texts, at))),
    NeedInputs: lambda m, at: NeedInputs(_pick(m.tasks, at), _pick(m.needs, at)),
    NeedTasks: lambda m, at: NeedTasks(_pick(m.tasks, at)),
}
