"""The agent's side of the channel to one worker. Nothing blocks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections import deque
from typing import Any, Final

from scaler_io import descriptors
from scaler_protocol.messages import Message
from scaler_worker.agent.core.events import TailRecalled
from scaler_worker.ipc.client_messages import MessageReader, pack_message
from scaler_worker.ipc.frames import (
    DEFINE,
    DIRECT_LIMIT,
    HEAD_BYTES,
    RECEIVE_SIZE,
    TASKS,
    ReplyEvent,
    ReplyReader,
    handle_of,
    sequence_of,
)

BUFFER_SIZE: Final = 1024 * 1024
READ_SIZE: Final = 128 * 1024
DESCRIPTORS: Final = 7
"""Descriptors of a worker while it starts, the one of its fault handler included."""
READS: Final = 16
"""Reads of one pipe per turn, so that no worker starves the others."""


class WorkerChannel:
    """The descriptors of one worker, from its request to its end; raises OSError if they cannot be opened."""

    def __init__(self) -> None:
        self.pid = 0
        descriptors.require(DESCRIPTORS)
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            self._tasks, self._tail = map(ours.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            messages, messages_theirs = socket.socketpair()
            self._messages, self._messages_theirs = ours.enter_context(messages), theirs.enter_context(messages_theirs)
            self.results, self._results_theirs = os.pipe()
            ours.callback(os.close, self.results)
            theirs.callback(os.close, self._results_theirs)
            with contextlib.suppress(OSError):  # beyond the user's pipe limit: keep the default size
                fcntl.fcntl(self._results_theirs, fcntl.F_SETPIPE_SZ, BUFFER_SIZE)
            self._tasks.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_SIZE)
            self._tasks.setblocking(False)
            self._messages.setblocking(False)
            os.set_blocking(self.results, False)
            self._ours, self._theirs = ours.pop_all(), theirs.pop_all()
        self._replies = ReplyReader()
        self._reader = MessageReader()
        self._backlog: deque[bytes] = deque()
        self._message_backlog = bytearray()

    def worker_ends(self) -> tuple[int, int, int]:
        """The worker's descriptors, in the order of WorkerDescriptors, without the one of its fault handler."""
        return self._tail.fileno(), self._results_theirs, self._messages_theirs.fileno()

    def handed_over(self) -> None:
        """Close the worker's ends, which it has received, except the one through which tasks are recalled."""
        self._theirs.close()

    @property
    def tasks_fileno(self) -> int:
        """The descriptor that becomes writable when more datagrams fit."""
        return self._tasks.fileno()

    @property
    def messages_fileno(self) -> int:
        """The descriptor of the message stream with the client inside the worker's task."""
        return self._messages.fileno()

    def send(self, datagram: bytes) -> None:
        """Queue a datagram for the next `flush_datagrams`."""
        self._backlog.append(datagram)

    def flush_datagrams(self) -> bool:
        """Write queued datagrams; False means to call it again when `tasks_fileno` is writable.

        Datagrams for a dead worker are discarded. Raises OSError if no memory file can be created for a long datagram:
        call it again later.
        """
        backlog = self._backlog
        while backlog:
            datagram = backlog[0]
            try:
                if len(datagram) <= DIRECT_LIMIT:
                    self._tasks.send(datagram)
                else:
                    self._send_as_file(datagram)
            except BlockingIOError:
                return False
            except (BrokenPipeError, ConnectionResetError):
                backlog.clear()
                return True
            backlog.popleft()
        return True

    def _send_as_file(self, datagram: bytes) -> None:
        descriptor = os.memfd_create("scaler-task", os.MFD_CLOEXEC)
        try:
            at = 0
            while at < len(datagram):
                at += os.write(descriptor, memoryview(datagram)[at:])
            socket.send_fds(self._tasks, [datagram[:HEAD_BYTES]], [descriptor])
        finally:
            os.close(descriptor)

    def recall(self) -> TailRecalled:
        """Read back unread datagrams."""
        datagrams = list(self._backlog)
        self._backlog.clear()
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while True:
                # The kernel drops the memory file of a long datagram, for which recv has no room: its head suffices.
                data = self._tail.recv(RECEIVE_SIZE, socket.MSG_DONTWAIT)
                if not data:
                    break
                datagrams.append(data)
        return TailRecalled(
            tuple(sequence_of(datagram) for datagram in datagrams if datagram[0] == TASKS),
            tuple(handle_of(datagram) for datagram in datagrams if datagram[0] == DEFINE),
        )

    def read(self) -> list[ReplyEvent]:
        """The replies that have arrived; raises EOFError after the last one of a worker that has closed its end."""
        events: list[ReplyEvent] = []
        for _ in range(READS):
            try:
                data = os.read(self.results, READ_SIZE)
            except BlockingIOError:
                break
            if not data:
                if events:
                    break
                raise EOFError
            events += self._replies.feed(data)
            if len(data) < READ_SIZE // 2:
                break
        return events

    def read_messages(self) -> list[Any]:
        """The messages of the client inside the worker's task; raises EOFError when the worker has ended."""
        try:
            data = self._messages.recv(READ_SIZE)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            data = b""
        if not data:
            raise EOFError
        return self._reader.feed(data)

    def send_message(self, message: Message) -> bool:
        """Send to the client inside the worker's task; False means to call `flush_messages` when it is writable."""
        self._message_backlog += pack_message(message)
        return self.flush_messages()

    def flush_messages(self) -> bool:
        """Write queued messages; returns whether all were written."""
        try:
            while self._message_backlog:
                del self._message_backlog[: self._messages.send(self._message_backlog)]
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            self._message_backlog.clear()
        return True

    def end(self) -> None:
        """Close the task socket: the worker reads its end and exits."""
        self._tasks.close()

    def close(self) -> None:
        """Close all descriptors, when the worker has ended or was never started."""
        self._ours.close()
        self._theirs.close()
