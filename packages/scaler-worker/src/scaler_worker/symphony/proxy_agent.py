"""The proxy agent: the shell around ProxyCore. It owns the link, the session of Symphony and two threads.

One thread decodes calls and answers, which may load code of users and wait for object storage; the other one calls
`soamapi`, which may block. Everything else is done on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from scaler_io.links.effects import Log, perform_each
from scaler_io.service.logs import write
from scaler_io.service.turn_loop import TurnLoop
from scaler_io.transport.in_process import AnyDialer
from scaler_protocol.handshake import Goodbye
from scaler_worker.agent import host
from scaler_worker.agent.agent_link import AgentLink
from scaler_worker.agent.core.events import DrainRequested, EndAgent, SendToScheduler
from scaler_worker.agent.core.records import RUN
from scaler_worker.agent.log_once import LogOnce
from scaler_worker.ipc.shared_state import SharedState
from scaler_worker.symphony.codec import CallCodec
from scaler_worker.symphony.events import (
    CallEnded,
    OpenSession,
    SessionLost,
    SessionOpened,
    StartRun,
    StopRun,
    TaskFailed,
)
from scaler_worker.symphony.proxy_core import ProxyCore
from scaler_worker.symphony.session import SymphonySession, TaskReply
from scaler_worker.symphony.work_thread import WorkThread

LOGGER: Final = logging.getLogger("scaler")
CLOSE_SECONDS: Final = 2.0
"""How long the session may take to kill its tasks and close."""
FAILED_SUBMITS: Final = 2
"""After so many in a row the session is taken for lost; one alone may be due to its task."""

Replied = Callable[[int, TaskReply], object]
Lost = Callable[[str], object]
OpenFunction = Callable[[Replied, Lost], SymphonySession]


class ProxyAgent:
    """Runs the tasks of one scheduler as tasks of Symphony. Construct it inside the running loop.

    `open_session` connects to Symphony, and raises ScalerError.
    """

    def __init__(
        self,
        core: ProxyCore,
        codec: CallCodec,
        dialer: AnyDialer,
        shared: SharedState,
        open_session: OpenFunction,
        heartbeat_seconds: float,
    ) -> None:
        self._core, self._codec, self._heartbeat = core, codec, heartbeat_seconds
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._turns = TurnLoop(self)
        self._link = AgentLink(dialer, shared, self._turns)
        self._decoding = WorkThread("scaler-decode")
        self._symphony = WorkThread("scaler-symphony")
        self._open = open_session
        self._session: SymphonySession | None = None
        self._generation = 0
        """The number of the session; what an earlier one still reports is ignored."""
        self._failed_submits = 0
        self._calls: dict[int, StartRun] = {}
        """Calls that have begun and are neither ended nor stopped, by run."""
        self._figures = host.HostFigures()
        self._errors = LogOnce(LOGGER)
        self._perform: dict[type, Callable[[Any], object]] = {
            SendToScheduler: lambda effect: self._link.send(effect.message),
            Log: write,
            EndAgent: lambda effect: self.stop(effect.code, *effect.reasons),
            OpenSession: self._open_session,
            StartRun: self._start,
            StopRun: self._stop_run,
        }

    async def run(self) -> int:
        """Run until `stop`; returns the exit code. The session is closed then."""
        self._loop.set_exception_handler(self._fault)
        try:
            self._heartbeat_due()
            self._turns.now()
            return await self._ended
        finally:
            await self._end()

    def stop(self, code: int, *reasons: str) -> None:
        """End the agent with an exit code; the reasons are logged."""
        if not self._ended.done():
            for reason in reasons:
                LOGGER.log(logging.ERROR if code else logging.INFO, "%s", reason)
            self._ended.set_result(code)
            self._turns.close()

    def drain(self, reason: str) -> None:
        """Finish the runs that have begun, hand over what is kept, and end."""
        self._tell(DrainRequested(reason))

    def _fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an unexpected exception: exit instead of continuing half-done; the scheduler reruns our tasks."""
        LOGGER.error("%s", context.get("message"), exc_info=context.get("exception"))
        self.stop(1, "the agent failed")

    async def _end(self) -> None:
        self._link.close(time.monotonic(), Goodbye("the agent stops"))
        self._drop_session(kill=True)
        await asyncio.gather(
            asyncio.to_thread(self._symphony.close, CLOSE_SECONDS), asyncio.to_thread(self._decoding.close, 0.0)
        )

    # --- turns ------------------------------------------------------------------------------------------------------

    def turn(self, now: float) -> float:
        """Handle what the scheduler sent, let the core decide, perform its effects, write."""
        core, link = self._core, self._link
        if core.is_ready:
            for event in link.receive(now):
                core.handle(event, now)
        perform_each(core.settle(now), self._perform, self._effect_failed)
        if self._turns.closed:
            return math.inf
        if not core.is_ready:
            return core.due()
        for event in link.flush(now):
            core.handle(event, now)
        return min(core.due(), link.due())

    def readable(self) -> bool:
        """Whether the scheduler has sent more than was handled."""
        return self._core.is_ready and self._link.readable()

    def _tell(self, event: Any) -> None:
        self._core.handle(event, time.monotonic())
        self._turns.soon()

    def _heartbeat_due(self) -> None:
        if self._turns.closed:
            return
        self._loop.call_later(self._heartbeat, self._heartbeat_due)
        if self._link.is_up:
            free, _ = host.available_memory()
            self._link.send(self._core.take_status(self._figures.measure((), free, time.monotonic())))
            self._turns.soon()

    def maintain(self, collect: Callable[[], object]) -> None:
        """Forget unused objects and collect garbage, in the thread that decodes calls."""
        self._decoding.do(self._codec.forget_unused, self._maintained)
        self._decoding.do(collect, self._maintained)

    def _maintained(self, result: object) -> None:
        if isinstance(result, Exception):
            self._errors.log("maintenance failed", result)

    def _effect_failed(self, effect: Any, error: Exception) -> None:
        """A failed effect ends only the run concerned; a message that cannot be encoded ends none."""
        self._errors.log(f"{type(effect).__name__} failed", error)
        if isinstance(effect, StartRun):
            self._calls.pop(effect.entry[RUN], None)
            self._tell(TaskFailed(effect.entry[RUN], f"{type(error).__name__}: {error}"))

    # --- session ----------------------------------------------------------------------------------------------------

    def _open_session(self, effect: OpenSession) -> None:
        self._generation += 1
        generation = self._generation

        def replied(run: int, reply: TaskReply) -> None:
            self._from_thread(self._replied, generation, run, reply)

        def lost(reason: str) -> None:
            self._from_thread(self._lost, generation, reason)

        self._symphony.do(lambda: self._open(replied, lost), partial(self._opened, generation))

    def _from_thread(self, function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *arguments)

    def _opened(self, generation: int, result: SymphonySession | Exception) -> None:
        if isinstance(result, SymphonySession):
            self._session, self._failed_submits = result, 0
            if self._turns.closed:
                self._drop_session(kill=True)
            self._tell(SessionOpened())
        else:
            self._lost(generation, str(result))

    def _lost(self, generation: int, reason: str) -> None:
        if generation == self._generation:
            self._generation += 1
            self._drop_session(kill=False)
            self._tell(SessionLost(reason))

    def _drop_session(self, *, kill: bool) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._symphony.do(partial(session.close, kill=kill), self._log_failure)

    def _log_failure(self, result: object) -> None:
        if isinstance(result, Exception):
            LOGGER.warning("Symphony: %s: %s", type(result).__name__, result)

    # --- calls ------------------------------------------------------------------------------------------------------

    def _start(self, effect: StartRun) -> None:
        self._calls[effect.entry[RUN]] = effect
        self._decoding.do(partial(self._codec.encode, effect.entry, effect.definition), partial(self._encoded, effect))

    def _encoded(self, effect: StartRun, result: bytes | CallEnded | Exception) -> None:
        run, session = effect.entry[RUN], self._session
        if self._calls.get(run) is not effect:
            return
        if isinstance(result, bytes):
            if session is not None:
                self._symphony.do(partial(session.submit, run, result), partial(self._submitted, run))
            return
        self._calls.pop(run)
        self._tell(result if isinstance(result, CallEnded) else TaskFailed(run, str(result)))

    def _submitted(self, run: int, result: object) -> None:
        if not isinstance(result, Exception):
            self._failed_submits = 0
            return
        reason = f"the task was refused: {type(result).__name__}: {result}"
        self._failed_submits += 1
        if self._failed_submits >= FAILED_SUBMITS:
            self._lost(self._generation, reason)
        elif self._calls.pop(run, None) is not None:
            self._tell(TaskFailed(run, reason))

    def _replied(self, generation: int, run: int, reply: TaskReply) -> None:
        effect = self._calls.get(run)
        if effect is None or generation != self._generation:
            return
        if reply.output is None:
            self._calls.pop(run)
            self._tell(TaskFailed(run, reply.reason))
            return
        decode = partial(self._codec.decode, effect.entry, effect.definition, reply.output, self._core.slot_of(run))
        self._decoding.do(decode, partial(self._decoded, effect))

    def _decoded(self, effect: StartRun, result: CallEnded | Exception) -> None:
        run = effect.entry[RUN]
        if self._calls.get(run) is effect:
            del self._calls[run]
        self._tell(TaskFailed(run, str(result)) if isinstance(result, Exception) else result)

    def _stop_run(self, effect: StopRun) -> None:
        session = self._session
        if self._calls.pop(effect.run, None) is not None and session is not None:
            self._symphony.do(partial(session.kill, effect.run), self._log_failure)
