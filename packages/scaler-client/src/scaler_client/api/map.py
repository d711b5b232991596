"""Many calls of one function: submitted in blocks while later ones are serialized, collected in order."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from itertools import chain, islice
from typing import Any, Final

from scaler_client.calls.encoding import CallWriter
from scaler_client.core.records import CallBlock, CallGroup, Dependency
from scaler_client.futures.futures import FailedArgumentError
from scaler_client.futures.results import Failure, load_failure, refuse
from scaler_client.objects.handles import fetched, object_bytes, pending_puts, stored_positions
from scaler_client.objects.store import wait_until_put
from scaler_client.payloads.pickles import load_with
from scaler_client.payloads.signatures import CallCheck
from scaler_client.payloads.user_exceptions import note_item
from scaler_client.runtime.io_thread import IoThread
from scaler_io.thread_event import ThreadEvent
from scaler_protocol.buffers import Buffer
from scaler_protocol.errors import StorageLostError
from scaler_protocol.handshake import INLINE_LIMIT
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import MESSAGE_LIMIT, MESSAGE_NEEDS, Encoding, Status

_NO_KEYWORDS: Final[dict[str, Any]] = {}
FIRST_TASKS = 16
BLOCK_TASKS = 4096
BLOCK_BYTES = 16 * 1024 * 1024
"""Calls and bytes of a block at most; the first block has FIRST_TASKS calls, which give an estimate of their size."""
BLOCK_SECONDS = 0.1
"""How long the rows of a block are drawn one by one at most, so that a slow iterable delays no call."""
LIMIT_BLOCKS = 4
"""Blocks in flight at least, where the number of unfinished tasks is limited."""
INFLIGHT_LIMIT_BYTES = 128 * 1024 * 1024
"""Bytes of calls in flight above which submission waits."""
RETRY_SECONDS = 0.1
"""Interval of the attempts to fetch a result from a storage server that is unreachable."""


@dataclass(slots=True)
class _Written:
    """A block: serialized calls, their dependencies by position, and the bytes of both."""

    calls: list[bytes]
    needs: dict[int, Sequence[Dependency]]
    size: int


class MapSubmission:
    """The calls of one `map` or `starmap`."""

    def __init__(
        self,
        io: IoThread,
        writer: CallWriter,
        group: CallGroup,
        check: CallCheck,
        timeout_seconds: float,
        *,
        waits: bool = True,
        return_exceptions: bool = False,
    ) -> None:
        self._io, self._writer, self._group, self._check = io, writer, group, check
        self._timeout_seconds = timeout_seconds
        self._waits = waits
        """Whether to wait for room for more tasks; otherwise SubmitLimitError is raised."""
        self._return_exceptions = return_exceptions
        """Whether failures are among the results; otherwise the first one ends the map."""
        self._blocks: list[CallBlock] = []
        self._changed = ThreadEvent()

    def progress(self) -> tuple[int, int]:
        """The number of calls that have ended, and of all calls so far."""
        blocks = self._blocks[:]
        total = sum(len(block.calls) for block in blocks)
        return total - sum(block.missing for block in blocks), total

    def run(
        self, rows: Iterable[tuple[Any, ...]], reserialized: set[int] | None = None, *, prefetchable: bool = False
    ) -> list[Any]:
        """The results of all rows; if one fails, or the thread is interrupted, the others are cancelled.

        Each row is serialized before the next is drawn, because an iterator may yield one object again and again,
        changed in place; rows that are `prefetchable` are drawn and serialized in blocks.
        """
        rows, count = iter(rows), FIRST_TASKS
        write = self._write_together if prefetchable else self._write_one_by_one
        try:
            while written := write(islice(rows, self._at_most(count)), reserialized):
                count = max(1, min(BLOCK_TASKS, BLOCK_BYTES * len(written.calls) // (written.size or 1)))
                self._submit(written.calls, written.needs)
                if self._changed.is_set():
                    self._raise_failure()
                self._limit_inflight()
            results: list[Any] = []
            for block in self._blocks:
                self._await(block)
                results += _load(block, self._timeout_seconds)
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
        calls, needs = self._writer.write_rows(chunk, reserialized, self._io.carries)
        size = sum(map(len, calls)) + object_bytes(needs.values())
        if max(map(len, calls)) <= INLINE_LIMIT:
            return _Written(list(map(bytes, calls)), needs, size)
        return _Written([self._io.place(call, position) for position, call in enumerate(calls)], needs, size)

    def _write_one_by_one(self, rows: Iterable[tuple[Any, ...]], reserialized: set[int] | None) -> _Written | None:
        written, write, arities = _Written([], {}, 0), self._writer.write, set[int]()

        def carries(size: int) -> bool:
            return self._io.carries(size, len(written.calls))

        changed, clock, until = self._changed.is_set, time.monotonic, time.monotonic() + BLOCK_SECONDS
        for position, row in enumerate(rows):
            if len(row) not in arities:
                self._check.check(*(None,) * len(row))
                arities.add(len(row))
            call, needs = write(row, _NO_KEYWORDS, reserialized, carries)
            written.size += len(call)
            if type(call) is not bytes or len(call) > INLINE_LIMIT:
                call = self._io.place(call, position)
            written.calls.append(call)
            if needs:
                written.needs[position] = needs
            if changed():
                self._raise_failure()
            if clock() >= until:
                break
        written.size += object_bytes(written.needs.values())
        return written if written.calls else None

    def _submit(self, calls: list[bytes], needs: Mapping[int, Sequence[Dependency]]) -> None:
        for stored in pending_puts(chain.from_iterable(needs.values()), *(calls if stored_positions(calls) else ())):
            wait_until_put(stored)
        for at, end in _pieces(calls, needs):
            first = self._io.next_tasks(end - at)
            needed = {position - at: found for position, found in needs.items() if at <= position < end}
            block = CallBlock(first, self._group, calls[at:end], self._changed.set, needed)
            self._blocks.append(block)
            if self._io.gate.limit:
                size, woken, look = end - at, self._changed, self._raise_failure
                self._io.gate.put(block, size, block=self._waits, woken=woken, look=look)
            else:
                self._io.mailbox.put(block)

    def _at_most(self, count: int) -> int:
        """The calls of a block: so many, but less than the limit of tasks, so that some run while others wait."""
        limit = self._io.gate.limit
        return min(count, max(1, limit // LIMIT_BLOCKS)) if limit else count

    def _limit_inflight(self) -> None:
        """Back-pressure: wait while more than INFLIGHT_LIMIT_BYTES are in flight."""
        for block in self._blocks:
            if sum(each.argument_bytes * each.missing for each in self._blocks) <= INFLIGHT_LIMIT_BYTES:
                return
            self._await(block)

    def _await(self, block: CallBlock) -> None:
        """Wait for the end of a block; raises the first failure of any block."""
        while True:
            ended = not block.missing  # before the look at the failures: its last outcome may be one
            self._raise_failure()
            if ended:
                return
            with self._io.waiting:
                self._changed.wait()

    def _raise_failure(self) -> None:
        """Raise the first failure of any block, if there is one and failures are no results."""
        self._changed.clear()
        if self._return_exceptions:
            return
        number = 0
        for block in self._blocks:
            if block.failures:
                _raise_first(block, self._timeout_seconds, number)
            number += len(block.calls)

    def _cancel(self) -> None:
        tasks = [task for block in self._blocks if block.missing for task in block.tasks]
        if tasks:
            self._io.cancel(tasks)


def _pieces(calls: Sequence[bytes], needs: Mapping[int, Sequence[Dependency]]) -> Iterator[tuple[int, int]]:
    """Split calls into ranges that fit into one message each."""
    if sum(map(len, calls)) <= MESSAGE_LIMIT and sum(map(len, needs.values())) <= MESSAGE_NEEDS:
        yield 0, len(calls)
        return
    at = size = inputs = 0
    for position, call in enumerate(calls):
        found = len(needs.get(position, ()))
        if (size + len(call) > MESSAGE_LIMIT or inputs + found > MESSAGE_NEEDS) and position > at:
            yield at, position
            at, size, inputs = position, 0, 0
        size += len(call)
        inputs += found
    yield at, len(calls)


def _load(block: CallBlock, timeout_seconds: float) -> list[Any]:
    """The results of a block that has ended; failures are among them where they have not ended the map."""
    found, block.results = block.results, []
    if not block.failures:
        return _load_values(block, found, timeout_seconds)
    failures = {position: (status, payload) for position, status, payload in block.failures}
    values = iter(_load_values(block, [each for at, each in enumerate(found) if at not in failures], timeout_seconds))
    return [_failure(*failures[at], timeout_seconds)[0] if at in failures else next(values) for at in range(len(found))]


def _load_values(block: CallBlock, results: list[bytes], timeout_seconds: float) -> list[Any]:
    load = block._group.load
    if block.is_long or stored_positions(results):
        return _load_long(load, results, timeout_seconds)
    try:
        return [load(payload) for payload in results]
    except BaseException as problem:
        refuse("a result", problem)


def _load_long(load: Callable[[bytes], Any], results: list[bytes], timeout_seconds: float) -> list[Any]:
    """Load results one by one; each is let go of, and its object deleted, once it is loaded."""
    values: list[Any] = []
    for position, payload in enumerate(results):
        content = _fetched(payload, timeout_seconds)
        results[position] = payload = b""
        try:
            values.append(load_with(load, content))
        except BaseException as problem:
            refuse("a result", problem)
    return values


def _fetched(payload: bytes, timeout_seconds: float) -> Buffer:
    """The payload itself. Waits for an unreachable storage server: a map, unlike a future, cannot be asked again."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            return fetched(payload)
        except StorageLostError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(RETRY_SECONDS)


def _failure(status: int, payload: bytes, timeout_seconds: float) -> Failure:
    if status == Status.CANCELLED:
        return CancelledError(), None
    return load_failure(status, _fetched(payload, timeout_seconds))


def _raise_first(block: CallBlock, timeout_seconds: float, number: int = 0) -> None:
    """Raise the first failure of a block, whose first call is of that item."""
    position, status, payload = min(block.failures)
    error, traceback = _failure(status, payload, timeout_seconds)
    note_item(error, number + position, _row_of(block, position))
    try:
        raise error.with_traceback(traceback)
    finally:
        del error, traceback  # break the cycle through this frame


def _row_of(block: CallBlock, position: int) -> Sequence[Any] | None:
    """The arguments of a call, if they are within it as a pickle."""
    call = block.calls[position]
    if type(call) is not bytes or position in block.needs or block._group.wire.encoding != Encoding.PICKLE:
        return None
    try:
        args, _ = pickle.loads(call)
        return tuple(args)
    except (Exception, SystemExit):  # what a user's class does when it is loaded
        return None
