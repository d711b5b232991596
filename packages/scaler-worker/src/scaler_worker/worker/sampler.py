"""Sampler: what the main thread of a worker executes, seen many times a second by a thread that exists only meanwhile.

The agent writes the end of the profile into a cell of the shared state and sends SIGURG, which does nothing to a
process without a handler. A task that stays within one call of C code, and holds the interpreter, is not seen.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Final

import scaler_client
import scaler_worker
from scaler_protocol.stack_counts import OTHERS
from scaler_worker.ipc.stacks import FRAMES, LEFT_OUT, frame_text, pack_stacks

INTERVAL_SECONDS: Final = 0.02
TEXT_BYTES: Final = 2**17
"""Bytes of the samples that are sent."""
STACKS: Final = 10_000
"""Different stacks that are counted; further ones are counted together."""
_OTHERS: Final = (OTHERS, ())
_OURS: Final = tuple(f"{Path(each.__file__).parent}/" for each in (scaler_client, scaler_worker) if each.__file__)


class Sampler:
    """Samples of one worker: made in its main thread."""

    def __init__(
        self,
        until: Callable[[], int],
        caller: CodeType,
        function: Callable[[], str],
        send: Callable[[int, bytes], None],
    ) -> None:
        """`until` tells when the profile ends, in monotonic nanoseconds, and `function` the name of what runs now.

        `caller` is the code that calls tasks. `send` sends the samples of the profile that ends then.
        """
        self._until, self._caller, self._function, self._send = until, caller, function, send
        self._main = _thread.get_ident()
        self._is_sampling = False

    def watch(self) -> None:
        """Sample from now on when the agent asks for it."""
        signal.signal(signal.SIGURG, self._begin)
        signal.siginterrupt(signal.SIGURG, False)

    def _begin(self, *signalled: object) -> None:
        # Not threading.Thread: its locks may be those that the task has just taken.
        if not self._is_sampling:
            self._is_sampling = True
            try:
                _thread.start_new_thread(self._sample, ())
            except RuntimeError:  # there is no room for a thread now
                self._is_sampling = False

    def _sample(self) -> None:
        """Take the profile that is asked for, and those that are meanwhile."""
        until = 0
        try:
            while until != self._until():
                until = self._until()
                counts = self._samples(until)
                if until == self._until():
                    with contextlib.suppress(OSError):  # the agent has exited, and this process exits soon
                        self._send(until, pack_stacks(counts, TEXT_BYTES))
        finally:
            _name.cache_clear()
            self._is_sampling = False
        if until != self._until():  # asked for just before the flag fell
            self._begin()

    def _samples(self, until: int) -> Counter[str]:
        codes: dict[int, CodeType] = {}
        counts: Counter[tuple[str, tuple[int, ...]]] = Counter()
        while time.monotonic_ns() < until == self._until():
            time.sleep(INTERVAL_SECONDS)
            stack = self._stack(codes)
            if stack is not None:
                counts[stack if stack in counts or len(counts) < STACKS else _OTHERS] += 1
        written = Counter[str]()
        for (function, numbers), count in counts.items():
            written[_text(function, [codes[number] for number in numbers])] += count
        return written

    def _stack(self, codes: dict[int, CodeType]) -> tuple[str, tuple[int, ...]] | None:
        """The function that runs now and the ids of its code, innermost first; `codes` are kept by their ids."""
        # By their ids, because the hash of a code object takes as long as all the rest.
        frame = sys._current_frames().get(self._main)
        stack: list[int] = []
        while frame is not None and (code := frame.f_code) is not self._caller:
            stack.append(number := id(code))
            codes[number] = code
            frame = frame.f_back
        function = self._function()
        return (function, tuple(stack)) if frame is not None and function else None


def _text(function: str, codes: list[CodeType]) -> str:
    """A stack as text, without the frames of ours that call the function of the task."""
    while codes and codes[-1].co_filename.startswith(_OURS):
        codes.pop()
    names = [_name(code) for code in codes[: -FRAMES - 1 : -1]]
    return ";".join([frame_text(function), *names, *[LEFT_OUT] * (len(codes) > FRAMES)])


@lru_cache(2000)
def _name(code: CodeType) -> str:
    called = getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on
    return frame_text(f"{called} ({'/'.join(Path(code.co_filename).parts[-2:])}:{code.co_firstlineno})")
