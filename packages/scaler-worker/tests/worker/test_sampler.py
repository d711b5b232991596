"""Sampler: real threads look at a real main thread."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from scaler_worker.ipc.stacks import FRAMES, LEFT_OUT, frame_text, pack_stacks, read_stacks
from scaler_worker.worker.sampler import Sampler
from support.gates import SECONDS


class SampledRunner:
    """Calls a task as the runner does, and is signalled as the agent signals a worker."""

    def __init__(self) -> None:
        self.until, self.name = 0, ""
        self.sent: list[tuple[int, dict[str, int]]] = []
        self.answered = threading.Event()
        self._before = signal.getsignal(signal.SIGURG)
        Sampler(lambda: self.until, self.run.__func__.__code__, lambda: self.name, self._send).watch()  # type: ignore[attr-defined]

    def _send(self, until: int, text: bytes) -> None:
        self.sent.append((until, dict(read_stacks(text))))
        self.answered.set()

    def profile(self, seconds: float) -> None:
        self.until = time.monotonic_ns() + round(1e9 * seconds)
        os.kill(os.getpid(), signal.SIGURG)

    def run(self, name: str, task: Callable[[], object]) -> None:
        self.name = name
        try:
            task()
        finally:
            self.name = ""

    def sampled(self, name: str, task: Callable[[], object]) -> dict[str, int]:
        """The stacks of a task that waits until they are sent; again, and longer, where the machine stood still."""
        for seconds in (0.1, 2.0, 20.0):
            self.profile(seconds)
            self.run(name, task)
            if stacks := self.stacks():
                return stacks
        raise AssertionError("nothing was sampled")

    def stacks(self) -> dict[str, int]:
        assert self.answered.wait(SECONDS)
        self.answered.clear()
        until, stacks = self.sent.pop()
        assert until == self.until
        return stacks

    def close(self) -> None:
        signal.signal(signal.SIGURG, self._before)


@pytest.fixture
def runner() -> Iterator[SampledRunner]:
    made = SampledRunner()
    yield made
    made.close()


def wait_in(answered: threading.Event) -> None:
    assert answered.wait(SECONDS)


def recurse(depth: int, leaf: Callable[[], None]) -> None:
    if depth:
        recurse(depth - 1, leaf)
    else:
        leaf()


def test_what_a_task_executes_is_sampled_below_its_name(runner: SampledRunner) -> None:
    stacks = runner.sampled("jobs:price;fast", lambda: wait_in(runner.answered))
    assert all(stack.startswith("jobs:price:fast;") for stack in stacks)
    longest = max(stacks, key=lambda stack: stacks[stack]).split(";")
    assert any(frame.startswith("wait_in (worker/test_sampler.py:") for frame in longest)
    assert not any("SampledRunner.run" in frame for frame in longest)


def test_between_tasks_nothing_is_sampled_and_threads_end(runner: SampledRunner) -> None:
    before = set(os.listdir("/proc/self/task"))
    runner.profile(0.1)
    assert runner.stacks() == {}
    deadline = time.monotonic() + SECONDS
    while set(os.listdir("/proc/self/task")) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert set(os.listdir("/proc/self/task")) <= before  # threads of earlier tests may have ended


def test_deep_stacks_keep_their_outer_frames(runner: SampledRunner) -> None:
    stacks = runner.sampled("f", lambda: recurse(300, lambda: wait_in(runner.answered)))
    [stack] = {stack for stack in stacks if stack.endswith(LEFT_OUT)}
    assert len(stack.split(";")) == FRAMES + 2 and stack.count("recurse (") >= FRAMES - 5


def test_a_profile_that_is_asked_for_meanwhile_replaces_the_first(runner: SampledRunner) -> None:
    runner.profile(60.0)
    assert runner.sampled("f", lambda: wait_in(runner.answered)) and not runner.sent


def test_stacks_travel_as_lines_within_their_room() -> None:
    counts = {f"f;{number}": number + 1 for number in range(1000)}
    text = pack_stacks(counts, 500)
    assert len(text) <= 500 and dict(read_stacks(text)) == dict(list(counts.items())[-len(text.splitlines()) :])
    assert frame_text("a;b\nc\u2028d") == "a:b c d" and len(frame_text("x" * 1000)) == 160
