"""The launcher's processes: started in order, each when the one before is ready, started again when they die, and
ended together.

Every service is a session of its own, so that Ctrl-C in a terminal reaches the launcher alone. Each ends with this
process (`--parent-pid`), however that ends. What services print passes through; the last lines of each are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import psutil

from scaler_io.interpreters import environment_of_workers
from scaler_io.service.nonblocking import NonblockingWriter
from scaler_launch.cluster_file import Service

READY_SECONDS: Final = 30.0
"""How long a service may take until it can be reached."""
END_SECONDS: Final = 1.5
"""How long a service may take to end before it is told again, and then is killed."""
RESTARTS: Final = 4
"""How often a service that dies is started again within RESTARTS_SECONDS."""
RESTARTS_SECONDS: Final = 60.0
RESTART_PAUSE: Final = 0.5
"""Seconds from the end of a service to its next start; its children end with it meanwhile."""
LAST_LINES: Final = 10
"""Lines quoted of a service that has failed."""
_LINE_BYTES: Final = 1 << 20


class ServiceFailedError(Exception):
    """A service has ended, or did not become ready; `code` is the launcher's exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class RunningService:
    """One started service."""

    def __init__(
        self, service: Service, process: asyncio.subprocess.Process, lines: int, write: Callable[[bytes], None]
    ) -> None:
        self.service, self.process, self._write = service, process, write
        self.ended = asyncio.ensure_future(process.wait())
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._output = asyncio.ensure_future(self._pass_on(lines))

    @classmethod
    async def start(cls, service: Service, write: Callable[[bytes], None]) -> RunningService:
        """Start it; returns when it is ready. Its lines are passed to `write`. Raises ServiceFailedError."""
        ready, ready_end = os.pipe()
        # A pipe of our own: asyncio's would delay the end of a process until every heir of its output has ended, too.
        lines, lines_end = os.pipe()
        words = [*service.words, "--parent-pid", str(os.getpid())]
        if service.reports_ready:
            words += ["--ready-fd", str(ready_end)]
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *words,
                env=environment_of_workers(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=lines_end,
                stderr=lines_end,
                start_new_session=True,
                pass_fds=(ready_end,) if service.reports_ready else (),
            )
        except BaseException:
            os.close(ready)
            os.close(lines)
            raise
        finally:
            os.close(ready_end)
            os.close(lines_end)
        started = cls(service, process, lines, write)
        try:
            if service.reports_ready:
                await started._wait_ready(ready)
        except BaseException:
            await started.end()
            raise
        finally:
            os.close(ready)
        return started

    async def _wait_ready(self, reading: int) -> None:
        """Wait for the line that the service writes when it can be reached; at its end the pipe is readable, too."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(reading, readable.set)
        try:
            await asyncio.wait_for(readable.wait(), READY_SECONDS)
        except asyncio.TimeoutError:
            raise ServiceFailedError(f"the {self.service.name} is not ready after {READY_SECONDS:g} s", 1) from None
        finally:
            loop.remove_reader(reading)
        if not os.read(reading, 4096):
            raise await self.failure()

    async def failure(self) -> ServiceFailedError:
        """Why and how it has ended, with its last lines."""
        code = await self.ended
        # A process that a task has detached may have the service's output open for ever.
        await asyncio.wait((self._output,), timeout=END_SECONDS)
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        quoted = "".join(f"\n  | {line}" for line in self._last)
        lines = f"; its last lines:{quoted}" if quoted else ""
        return ServiceFailedError(
            f"the {self.service.name} has ended with {how}{lines}", code if code >= 0 else 128 - code
        )

    async def _pass_on(self, lines: int) -> None:
        """Pass on what it prints, and remember the last lines."""
        stream = asyncio.StreamReader(limit=_LINE_BYTES)
        pipe = os.fdopen(lines, "rb", buffering=0)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
        with contextlib.closing(transport):
            while line := await _next_line(stream):
                self._last.append(line.decode("utf-8", "replace").rstrip("\n"))
                self._write(line)

    async def end(self) -> None:
        """Have it end: SIGTERM, which many programs take twice for "at once", and SIGKILL for all that is left."""
        descendants = _descendants(self.process.pid)
        for _ in range(2):
            if self.ended.done():
                break
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
            await asyncio.wait((self.ended,), timeout=END_SECONDS)
        if not self.ended.done():
            descendants += _descendants(self.process.pid)
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.ended
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        await asyncio.wait((self._output,), timeout=END_SECONDS)
        self._output.cancel()


async def _next_line(stream: asyncio.StreamReader) -> bytes:
    """The next line, or a part of one that is longer than the limit; empty at the end."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await stream.read(error.consumed)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


class _Output:
    """Our standard output. Lines are dropped while nobody reads it, and for good when its reader is gone."""

    def __init__(self) -> None:
        self._writer = NonblockingWriter.on(sys.stdout)
        self._is_broken = False

    def write(self, line: bytes) -> None:
        """Write a line without waiting for a reader."""
        if self._is_broken:
            return
        try:
            if self._writer is not None:
                self._writer.write(line)
            else:
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
        except (OSError, ValueError):  # the services go on
            self._is_broken = True


async def supervise(services: Sequence[Service], stop: asyncio.Event) -> None:
    """Start services in order, and run them until `stop` is set; one that dies when all run is started again.

    Raises ServiceFailedError when one ends before that, ends by itself with code 0, or dies too often. At the end all
    are ended, the last one first.
    """
    output = _Output()
    running: list[RunningService] = []
    stopping = asyncio.ensure_future(stop.wait())
    try:
        for service in services:
            started = await _start(service, output, stopping, running)
            if started is None:
                return
            running.append(started)
            output.write(f"scaler: the {service.name} runs\n".encode())
        await _keep_running(running, output, stopping)
    finally:
        stopping.cancel()
        for each in reversed(running):
            await each.end()


async def _start(
    service: Service, output: _Output, stopping: asyncio.Future[Any], others: Sequence[RunningService]
) -> RunningService | None:
    """Start a service; None if all are to stop. Raises ServiceFailedError if it, or one of the others, ends before."""
    starting = asyncio.ensure_future(RunningService.start(service, output.write))
    try:
        await _first_of([starting, stopping], others)
    except BaseException:
        await _cancel(starting)
        raise
    if stopping.done():
        await _cancel(starting)
        return None
    return await starting


async def _keep_running(running: list[RunningService], output: _Output, stopping: asyncio.Future[Any]) -> None:
    """Start services that die again, until all are to stop; raises ServiceFailedError for one that dies too often."""
    deaths = _Deaths()
    while True:
        await asyncio.wait((stopping, *(each.ended for each in running)), return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            return
        place = next(place for place, each in enumerate(running) if each.ended.done())
        started = await _start_again(running[place], deaths, output, stopping)
        if started is None:
            return
        running[place] = started
        output.write(f"scaler: the {started.service.name} runs again\n".encode())


async def _start_again(
    dead: RunningService, deaths: _Deaths, output: _Output, stopping: asyncio.Future[Any]
) -> RunningService | None:
    """Start a service that has ended; None if all are to stop."""
    failure, name = await dead.failure(), dead.service.name
    while True:
        deaths.note(name, failure, asyncio.get_running_loop().time())
        output.write(f"scaler: {failure}\nscaler: the {name} is started again\n".encode())
        await asyncio.wait((stopping,), timeout=RESTART_PAUSE)
        try:
            return None if stopping.done() else await _start(dead.service, output, stopping, ())
        except ServiceFailedError as again:
            failure = again


class _Deaths:
    """When each service has died lately."""

    def __init__(self) -> None:
        self._times: dict[str, deque[float]] = {}

    def note(self, name: str, failure: ServiceFailedError, now: float) -> None:
        """Raises the failure if the service has ended with code 0, or too often."""
        times = self._times.setdefault(name, deque(maxlen=RESTARTS))
        if not failure.code or (len(times) == RESTARTS and now < times[0] + RESTARTS_SECONDS):
            raise failure
        times.append(now)


async def _first_of(futures: Sequence[asyncio.Future[Any]], running: Sequence[RunningService]) -> None:
    """Wait for one of the futures; raises ServiceFailedError if a service ends before."""
    ended: dict[asyncio.Future[Any], RunningService] = {each.ended: each for each in running}
    await asyncio.wait((*futures, *ended), return_when=asyncio.FIRST_COMPLETED)
    if not any(future.done() for future in futures):
        raise await next(each for future, each in ended.items() if future.done()).failure()


async def _cancel(starting: asyncio.Future[RunningService]) -> None:
    """Cancel a start, and end what it may have started meanwhile."""
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError, ServiceFailedError):
        await (await starting).end()
