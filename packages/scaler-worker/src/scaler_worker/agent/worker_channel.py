"""The agent's ends of the channel to one worker. Nothing here blocks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections import deque
from typing import Any, Final

from scaler_protocol.messages import Message
from scaler_worker.ipc.client_messages import MessageReader, pack_message
from scaler_worker.ipc.frames import (
    DATAGRAM_LIMIT,
    DEFINE,
    HEAD_BYTES,
    RecordEvent,
    RecordReader,
    handle_of,
)
from scaler_worker.worker.process import RECEIVE_SIZE

BUFFER_SIZE: Final = 1024 * 1024
READ_SIZE: Final = 128 * 1024
READS: Final = 16
"""Reads of one pipe in one turn, so that no worker keeps the agent from the others."""


class WorkerChannel:
    """Descriptors of one worker, from before its fork to after its death; raises OSError where there are none left."""

    def __init__(self) -> None:
        self.pid = 0
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            self._tasks, self._tail = map(ours.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            messages, messages_theirs = socket.socketpair()
            self._messages, self._messages_theirs = ours.enter_context(messages), theirs.enter_context(messages_theirs)
            self.results, self._results_theirs = os.pipe()
            ours.callback(os.close, self.results)
            theirs.callback(os.close, self._results_theirs)
            with contextlib.suppress(OSError):  # beyond the user's limit of pipe memory the default does
                fcntl.fcntl(self._results_theirs, fcntl.F_SETPIPE_SZ, BUFFER_SIZE)
            self._tasks.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_SIZE)
            self._tasks.setblocking(False)
            self._messages.setblocking(False)
            os.set_blocking(self.results, False)
            self._ours, self._theirs = ours.pop_all(), theirs.pop_all()
        self._records = RecordReader()
        self._reader = MessageReader()
        self._backlog: deque[bytes] = deque()
        self._message_backlog = bytearray()

    def worker_ends(self) -> tuple[int, int, int]:
        """The worker's descriptors, in the order of WorkerDescriptors, without the one of its fault handler."""
        return self._tail.fileno(), self._results_theirs, self._messages_theirs.fileno()

    def handed_over(self) -> None:
        """The worker has its descriptors; of its ends we keep the one by which tasks are recalled."""
        self._theirs.close()

    @property
    def tasks_fileno(self) -> int:
        """The descriptor to wait on where a datagram was not taken."""
        return self._tasks.fileno()

    @property
    def messages_fileno(self) -> int:
        """The descriptor of the client inside the worker's task."""
        return self._messages.fileno()

    def give(self, datagram: bytes) -> None:
        """Have a datagram written by the next `give_rest`."""
        self._backlog.append(datagram)

    def give_rest(self) -> bool:
        """Write what waits; False means to call it again when `tasks_fileno` is writable.

        What is for a dead worker is dropped. Raises OSError where there is no memory file for a long datagram: call it
        again later.
        """
        backlog = self._backlog
        while backlog:
            try:
                self._send(backlog[0])
            except BlockingIOError:
                return False
            except (BrokenPipeError, ConnectionResetError):
                backlog.clear()
                return True
            backlog.popleft()
        return True

    def _send(self, datagram: bytes) -> None:
        if len(datagram) <= DATAGRAM_LIMIT + 64 * 1024 // 2:
            self._tasks.send(datagram)
            return
        descriptor = os.memfd_create("scaler-task", os.MFD_CLOEXEC)
        try:
            at = 0
            while at < len(datagram):
                at += os.write(descriptor, memoryview(datagram)[at:])
            socket.send_fds(self._tasks, [datagram[:HEAD_BYTES]], [descriptor])
        finally:
            os.close(descriptor)

    def recall(self) -> tuple[int, tuple[int, ...]]:
        """Take back what the worker has not read: how many task datagrams, and which definitions' handles."""
        datagrams = list(self._backlog)
        self._backlog.clear()
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while True:
                # Without room for a descriptor the kernel drops the memory file of a long datagram: its head suffices.
                data = self._tail.recv(RECEIVE_SIZE, socket.MSG_DONTWAIT)
                if not data:
                    break
                datagrams.append(data)
        handles = tuple(handle_of(datagram) for datagram in datagrams if datagram[0] == DEFINE)
        return len(datagrams) - len(handles), handles

    def read(self) -> list[RecordEvent]:
        """The records that have come; raises EOFError behind the last one of a worker that has closed its end."""
        events: list[RecordEvent] = []
        for _ in range(READS):
            try:
                data = os.read(self.results, READ_SIZE)
            except BlockingIOError:
                break
            if not data:
                if events:
                    break
                raise EOFError
            events += self._records.feed(data)
            if len(data) < READ_SIZE // 2:
                break
        return events

    def read_messages(self) -> list[Any]:
        """The messages that the client inside the worker sent; raises EOFError when it is gone."""
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
        """Write to the client inside the worker; False means to call `send_rest` when it is writable."""
        self._message_backlog += pack_message(message)
        return self.send_rest()

    def send_rest(self) -> bool:
        """Write what waits for the client inside the worker; False means that some still does."""
        try:
            while self._message_backlog:
                del self._message_backlog[: self._messages.send(self._message_backlog)]
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            self._message_backlog.clear()
        return True

    def end(self) -> None:
        """Let the worker go: it finds its channel closed and ends."""
        self._tasks.close()

    def close(self) -> None:
        """The worker is gone, or was never there."""
        self._ours.close()
        self._theirs.close()
