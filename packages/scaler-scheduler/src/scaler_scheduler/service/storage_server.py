"""The object storage server beside a scheduler: a process that is started if none is running at its address."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from scaler_io.interpreters import words_of
from scaler_io.security.keyring import KeyRole
from scaler_io.service.operator_link import OperatorLink
from scaler_protocol.addresses import Address
from scaler_protocol.handshake import ServiceKind
from scaler_scheduler.service.options import SchedulerOptions

if TYPE_CHECKING:
    from scaler_io.service.forked_program import ForkedProgram

    Process = subprocess.Popen[bytes] | ForkedProgram

LOGGER = logging.getLogger("scaler")
WAIT_SECONDS = 2.0
"""Seconds to wait for a server that another process starts."""
START_SECONDS = 60.0
"""How long a server that was started here may take until it listens, as on a busy host; then it is killed."""
RETRY_SECONDS = 10.0
"""How long after the start of a server that has ended before it listened the next one is started."""
ANSWER_SECONDS = 10.0
"""How long a server that another process has started may take to answer."""
_PROBE_SECONDS = 0.1
_NAMED_SECONDS = 1.0
"""Between two looks whether the server that the options name has been started."""


def _run(words: Sequence[str]) -> Process:
    """Start a server as a new program."""
    # Ctrl-C in a terminal is for the scheduler: ours would be the server's second signal, and leave its files.
    command = [sys.executable, *words_of("scaler_storage"), *words]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)


class StorageServer:
    """The server that the options name, which is not supervised; or one at the port after the scheduler's, which is."""

    def __init__(self, options: SchedulerOptions, scheduler: Address) -> None:
        self.address = options.object_storage_address or scheduler.beside(1)
        self._options = options
        self._process: Process | None = None
        self._retry_at = 0.0

    def start(self, run: Callable[[Sequence[str]], Process] = _run) -> None:
        """Start one now, by `run`, without waiting for another; does nothing if the options name a server."""
        if self._options.object_storage_address is not None:
            return
        if self._process is None:
            LOGGER.info("Scheduler: no object storage server at %s, starting one", self.address)
        else:
            code = self._process.poll()
            self._process.kill()
            self._process.wait()
            reason = f"was killed: it did not listen for {START_SECONDS:g} s" if code is None else f"ended, code {code}"
            LOGGER.warning("Scheduler: the object storage server at %s %s; starting one again", self.address, reason)
            self._process = None
        self._retry_at = time.monotonic() + RETRY_SECONDS
        words = [str(self.address), "--parent-pid", str(os.getpid()), *_arguments(self._options)]
        try:
            self._process = run(words)
        except OSError as error:  # no memory, process or descriptor is left
            LOGGER.error(
                "Scheduler: the object storage server cannot be started, will try again in %g s: %s",
                RETRY_SECONDS, error,
            )  # fmt: skip

    async def keep(self) -> None:
        """Start the server whenever none is running, until cancelled; one that the options name is only looked at."""
        if self._options.object_storage_address is not None:
            while not await _listens(self.address):
                await asyncio.sleep(_NAMED_SECONDS)
            await self._warn_of_strangers()
            return
        seconds = WAIT_SECONDS if self._process is None else START_SECONDS
        while True:
            if await self._comes_up(seconds):
                is_ours = self._process is not None and self._process.poll() is None
                asking = None if is_ours else asyncio.ensure_future(self._warn_of_strangers())
                try:
                    await _until_gone(self.address)
                finally:
                    if asking is not None:
                        asking.cancel()
                seconds = START_SECONDS if is_ours else WAIT_SECONDS
                self._retry_at = time.monotonic() + (0.0 if is_ours else WAIT_SECONDS)
            else:
                self.start()
                seconds = START_SECONDS if self._process is not None else RETRY_SECONDS

    async def _comes_up(self, seconds: float) -> bool:
        """Whether a server listens now or within `seconds`; False sooner if ours has ended."""
        until = time.monotonic() + seconds
        while not await _listens(self.address):
            now = time.monotonic()
            has_ended = self._process is not None and self._process.poll() is not None
            if now >= until or (has_ended and now >= self._retry_at):
                return False
            await asyncio.sleep(_PROBE_SECONDS)
        return True

    async def _warn_of_strangers(self) -> None:
        """Log a warning if what listens at the address is no object storage server."""
        loop = asyncio.get_running_loop()
        until = loop.time() + ANSWER_SECONDS
        own = self._options.credentials([KeyRole.SERVER])
        with contextlib.closing(OperatorLink(self.address, "scheduler", ServiceKind.STORAGE, credentials=own)) as link:
            while not link.is_up and not link.problem and loop.time() < until:
                link.turn()
                await asyncio.sleep(_PROBE_SECONDS)
        if not link.is_up:
            LOGGER.warning(
                "Scheduler: what listens at %s does not answer as an object storage server: %s; payloads above 16 KiB "
                "cannot be stored; end it, or name another server with --object-storage-address",
                self.address, link.problem or f"no answer for {ANSWER_SECONDS:g} s",
            )  # fmt: skip

    def is_ours(self, pid: int) -> bool:
        """Whether the process with this id is the server that was started here."""
        return self._process is not None and self._process.pid == pid

    def end(self) -> None:
        """End the server that was started here, if any; returns when it has ended."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _arguments(options: SchedulerOptions) -> list[str]:
    """Command-line options that the server gets from the scheduler's."""
    values = {
        "keys": options.keys,
        "client-timeout-seconds": options.client_timeout_seconds,
        "object-retention-seconds": options.object_retention_seconds,
        "memory-limit": options.memory_limit,
        "segment-directory": options.segment_directory,
        "spill-directory": options.spill_directory,
        "spill-limit": options.spill_limit,
        "logging-level": options.logging_level,
        "log-format": options.log_format,
    }
    words = [f"--{name}={value}" for name, value in values.items() if value is not None]
    return [*words, *["--insecure"] * options.insecure, "--logging-paths", *options.logging_paths]


async def _connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.path:
        return await asyncio.open_unix_connection(address.path)
    return await asyncio.open_connection(address.host, address.port)


async def _listens(address: Address) -> bool:
    try:
        _, writer = await _connect(address)
    except OSError:
        return False
    writer.close()
    return True


async def _until_gone(address: Address) -> None:
    """Return when no server listens at the address any more; the one that answered may have been ending."""
    with contextlib.suppress(OSError):
        while True:
            reader, writer = await _connect(address)
            try:
                while await reader.read(4096):
                    pass
            finally:
                writer.close()
            await asyncio.sleep(_PROBE_SECONDS)
