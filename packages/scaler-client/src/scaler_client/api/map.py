"""Many calls of one function: handed over in blocks while they are still being written, gathered in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

from scaler_client.calls.encoding import CallWriter, FailedArgumentError
from scaler_client.core.records import CallBlock, CallGroup, Dependency
from scaler_client.futures.results import load_failure, refuse
from scaler_client.futures.waiters import Bell
from scaler_client.objects.handles import fetched, kept_bytes, pending_puts, stored_positions
from scaler_client.objects.store import wait_until_put
from scaler_client.payloads.pickles import load_with
from scaler_client.payloads.signatures import CallCheck
from scaler_client.runtime.io_thread import IoThread
from scaler_protocol.buffers import Buffer, Payload
from scaler_protocol.errors import StorageLostError
from scaler_protocol.handshake import INLINE_LIMIT
from scaler_protocol.messages import MESSAGE_LIMIT, Status

_NO_KEYWORDS: Final[dict[str, Any]] = {}
FIRST_TASKS = 16
BLOCK_TASKS = 4096
BLOCK_BYTES = 16 * 1024 * 1024
"""How many calls are written at once: as many as the last ones let expect to fit into BLOCK_BYTES."""
AHEAD_BYTES = 128 * 1024 * 1024
"""Bytes of calls without results after which no more are written for the time being."""


AGAIN_SECONDS = 0.1
"""How often a storage server that is away is asked for a result."""


@dataclass(slots=True)
class _Written:
    """Calls that can be sent, their needs by position, and how many bytes both have."""

    calls: list[bytes]
    needs: dict[int, Sequence[Dependency]]
    size: int


class MapSubmission:
    """The blocks of one map."""

    def __init__(
        self, io: IoThread, writer: CallWriter, group: CallGroup, check: CallCheck, patience_seconds: float
    ) -> None:
        self._io, self._writer, self._group, self._check = io, writer, group, check
        self._patience_seconds = patience_seconds
        self._blocks: list[CallBlock] = []
        self._changed = Bell()

    def progress(self) -> tuple[int, int]:
        """How many calls of how many have ended."""
        blocks = self._blocks[:]
        total = sum(len(block.calls) for block in blocks)
        return total - sum(block.missing for block in blocks), total

    def run(
        self, rows: Iterable[tuple[Any, ...]], reserialized: set[int] | None = None, *, prefetchable: bool = False
    ) -> list[Any]:
        """The results of all rows; where one fails, or the thread is interrupted, the others are cancelled.

        Each row is serialized before the next is drawn, because an iterator may yield one object again and again,
        changed in place; rows that are `prefetchable` are drawn and serialized in blocks.
        """
        rows, count = iter(rows), FIRST_TASKS
        write = self._write_together if prefetchable else self._write_one_by_one
        try:
            while written := write(islice(rows, count), reserialized):
                count = max(1, min(BLOCK_TASKS, BLOCK_BYTES * len(written.calls) // (written.size or 1)))
                self._submit(written.calls, written.needs)
                self._hold_back()
            results: list[Any] = []
            for block in self._blocks:
                self._await(block)
                results += _load(block, self._patience_seconds)
            return results
        except FailedArgumentError as failed:
            self._cancel()
            failed.argument.result()
            raise
        except BaseException:
            self._cancel()
            raise

    def _write_together(self, rows: Iterable[tuple[Any, ...]], reserialized: set[int] | None) -> _Written | None:
        chunk = list(rows)
        if not chunk:
            return None
        for arity in set(map(len, chunk)):
            self._check.check(*(None,) * arity)
        calls, needs = self._writer.write_rows(chunk, reserialized)
        size = sum(map(len, calls)) + kept_bytes(needs.values())
        if max(map(len, calls)) <= INLINE_LIMIT:
            return _Written(list(map(bytes, calls)), needs, size)
        return _Written(list(map(self._place, calls)), needs, size)

    def _write_one_by_one(self, rows: Iterable[tuple[Any, ...]], reserialized: set[int] | None) -> _Written | None:
        written, write, arities = _Written([], {}, 0), self._writer.write, set[int]()
        for position, row in enumerate(rows):
            if len(row) not in arities:
                self._check.check(*(None,) * len(row))
                arities.add(len(row))
            call, needs = write(row, _NO_KEYWORDS, reserialized)
            written.size += len(call)
            written.calls.append(call if type(call) is bytes and len(call) <= INLINE_LIMIT else self._place(call))
            if needs:
                written.needs[position] = needs
        written.size += kept_bytes(written.needs.values())
        return written if written.calls else None

    def _place(self, call: Payload) -> bytes:
        """What stands for a call, or its bytes: from here on nothing that its arguments become is seen."""
        return self._io.storage.place(call, soon=True)

    def _submit(self, calls: list[bytes], needs: Mapping[int, Sequence[Dependency]]) -> None:
        for kept in pending_puts(chain.from_iterable(needs.values()), *(calls if stored_positions(calls) else ())):
            wait_until_put(kept)
        for at, end in _pieces(calls):
            first = self._io.next_tasks(end - at)
            needed = {position - at: found for position, found in needs.items() if at <= position < end}
            block = CallBlock(first, self._group, calls[at:end], self._changed.ring, needed)
            self._blocks.append(block)
            self._io.mailbox.put(block)

    def _hold_back(self) -> None:
        """Wait while too much is under way already."""
        for block in self._blocks:
            if sum(each.argument_bytes * each.missing for each in self._blocks) <= AHEAD_BYTES:
                return
            self._await(block)

    def _await(self, block: CallBlock) -> None:
        """Wait for all of a block; raises the first failure of any."""
        while True:
            self._changed.hush()
            for each in self._blocks:
                if each.failures:
                    _raise_first(each, self._patience_seconds)
            if not block.missing:
                return
            with self._io.waiting:
                self._changed.wait()

    def _cancel(self) -> None:
        tasks = [task for block in self._blocks if block.missing for task in block.tasks]
        if tasks:
            self._io.cancel(tasks)


def _pieces(calls: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Ranges of calls that fit into one message each."""
    if sum(map(len, calls)) <= MESSAGE_LIMIT:
        yield 0, len(calls)
        return
    at = size = 0
    for position, call in enumerate(calls):
        if size + len(call) > MESSAGE_LIMIT and position > at:
            yield at, position
            at, size = position, 0
        size += len(call)
    yield at, len(calls)


def _load(block: CallBlock, patience_seconds: float) -> list[Any]:
    load, results = block.group.load, block.results
    block.results = []
    if stored_positions(results):
        return _load_stored(load, results, patience_seconds)
    try:
        return [load(payload) for payload in results]
    except BaseException as problem:
        refuse("a result", problem)


def _load_stored(load: Callable[[bytes], Any], results: list[bytes], patience_seconds: float) -> list[Any]:
    """As results are loaded their objects go, one by one."""
    values: list[Any] = []
    for position, payload in enumerate(results):
        content = _fetched(payload, patience_seconds)
        results[position] = payload = b""
        try:
            values.append(load_with(load, content))
        except BaseException as problem:
            refuse("a result", problem)
    return values


def _fetched(payload: bytes, patience_seconds: float) -> Buffer:
    """The payload proper. A storage server that is away is waited for: unlike a future a map can not be asked again."""
    until = time.monotonic() + patience_seconds
    while True:
        try:
            return fetched(payload)
        except StorageLostError:
            if time.monotonic() >= until:
                raise
            time.sleep(AGAIN_SECONDS)


def _raise_first(block: CallBlock, patience_seconds: float) -> None:
    _, status, payload = min(block.failures)
    if status == Status.CANCELLED:
        raise CancelledError
    error, traceback = load_failure(status, _fetched(payload, patience_seconds))
    try:
        raise error.with_traceback(traceback)
    finally:
        del error, traceback  # which lead here
