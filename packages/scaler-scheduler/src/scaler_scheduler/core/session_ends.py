"""SessionEnds: sessions that are over, whose tasks are forgotten a few at a time. Pure, no IO.

A client may leave a million tasks, and forgetting one takes about 2 us, so that all at once would hold everybody up.
What matters at once is done at once: no task of the session runs or waits for a worker any more, and nobody finds it.
"""

from __future__ import annotations

from math import inf
from typing import Final

from scaler_scheduler.core.completion import Completion
from scaler_scheduler.core.records import EndedTasks, HeldNodes, SessionRecord, TaskBlock
from scaler_scheduler.core.recovery import Recovery
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.core.task_states import ASSIGNED, DONE

TASKS: Final = 512
"""Tasks of a session that are forgotten in one turn: about 1 ms."""
SESSIONS: Final = 8
"""Sessions that count: of two that are over twice as many tasks are forgotten in one turn, so that none pile up."""


class SessionEnds:
    """Ends sessions."""

    def __init__(self, state: SchedulerState, completion: Completion, recovery: Recovery) -> None:
        self._state, self._completion, self._recovery = state, completion, recovery

    def end(self, session: SessionRecord, now: float) -> None:
        """A session is over: cancel its runs, or all tasks of a nested session, and forget it."""
        state = self._state
        apart = [
            task.id for task in (*state.suspects, *state.exclusive, *state.pinned) if task.group.session is session
        ]
        at_once = [task for task, record in session.tasks.items() if session.nested or record.state == ASSIGNED]
        self._completion.cancel_known(at_once + apart, now)
        state.sessions.pop(session.number, None)
        if state.recorder is not None and not session.nested:
            state.recorder.session_over(session.number)
        self._recovery.session_over(session)
        state.long_results.session_over(session)
        state.waiting.drop_session(session)
        session.end()
        state.ended_sessions.append(session)
        if len(state.ended_sessions) == 1:
            self.settle(now)

    def settle(self, now: float) -> None:
        """Forget some tasks, the last ones first: no other task then lacks an input."""
        ended = self._state.ended_sessions
        count = TASKS * min(len(ended), SESSIONS)
        while ended and count > 0:
            tasks = ended[0].tasks
            while tasks and count > 0:
                count -= 1
                # The last one; looking for it would take longer with each that is gone.
                task, entry = tasks.popitem()
                if isinstance(entry, TaskBlock):
                    self._state.drop_plain(task)
                    continue
                record = entry.record(task) if isinstance(entry, EndedTasks | HeldNodes) else entry
                if record.state == DONE:
                    self._completion.release(record, now)
                else:
                    self._completion.abandon(record, now)
            if not tasks:
                ended.popleft()

    def due(self) -> float | None:
        """When `settle` has something to do."""
        return -inf if self._state.ended_sessions else None
