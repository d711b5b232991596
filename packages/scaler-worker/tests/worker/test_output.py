"""What tasks print: from threads, finalizers, signal handlers and forked processes, as text and as bytes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from scaler_worker.ipc.frames import OUTPUT, REPLY, RESULT, OutputWritten, ReplyReader, RunsEnded
from scaler_worker.worker.ordered_replies import OrderedReplies
from scaler_worker.worker.output import STDERR, STDOUT, CapturedOutput, Pump
from scaler_worker.worker.result_pipe import ResultPipe
from scaler_worker.worker.runner import TEXT_LIMIT


class Printing:
    """Prints when it is finalized."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __del__(self) -> None:
        print(self._text)


def test_a_finalizer_may_print_in_the_middle_of_a_print() -> None:
    sent: list[str] = []
    garbage = [Printing("finalized")]

    def send(stream: int, text: str) -> None:
        garbage.clear()
        sent.append(text)

    with CapturedOutput(send):
        print("first")
        print("second")
    assert "".join(sent) == "first\nfinalized\nsecond\n"


def test_a_process_without_standard_streams_may_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    sent: list[str] = []
    with CapturedOutput(lambda stream, text: sent.append(text)):
        kept = sys.stdout
        print("printed")
    kept.write("too late\n")
    kept.flush()
    assert "".join(sent) == "printed\n" and sys.stdout is None


def test_a_signal_handler_may_print_in_the_middle_of_a_print() -> None:
    sent: list[str] = []

    def send(stream: int, text: str) -> None:
        if not sent:
            signal.raise_signal(signal.SIGUSR1)
        sent.append(text)

    before = signal.signal(signal.SIGUSR1, lambda number, frame: print("handled"))
    try:
        with CapturedOutput(send):
            print("printed")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert "".join(sent) == "printed\nhandled\n"


def test_what_threads_write_comes_once_and_in_order() -> None:
    sent: list[str] = []
    with CapturedOutput(lambda stream, text: sent.append(text)):
        threads = [threading.Thread(target=_count, args=(letter,)) for letter in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = "".join(sent).splitlines()
    for letter in "abc":
        assert [line for line in lines if line[0] == letter] == [f"{letter}{number}" for number in range(200)]


def _count(letter: str) -> None:
    for number in range(200):
        sys.stdout.write(f"{letter}{number}\n")


def test_bytes_and_what_else_programs_ask_of_a_stream() -> None:
    sent: list[tuple[int, str]] = []
    with CapturedOutput(lambda stream, text: sent.append((stream, text))):
        letters = "hé\n".encode()
        sys.stdout.buffer.write(letters[:2])
        sys.stdout.buffer.write(memoryview(letters)[2:])
        sys.stderr.buffer.write(b"\xff")
        sys.stderr.buffer.flush()
        assert (sys.stdout.encoding, sys.stdout.errors, sys.stdout.writable()) == ("utf-8", "replace", True)
        assert sys.stdout.line_buffering in (True, False)
        with pytest.raises(TypeError, match="must be str, not bytes"):
            sys.stdout.write(b"bytes")  # type: ignore[arg-type]
    assert sent == [(STDOUT, "hé\n"), (STDERR, "\ufffd")]


def test_a_thread_that_kept_the_stream_writes_to_the_one_it_stood_for(capsys: pytest.CaptureFixture[str]) -> None:
    sent: list[str] = []
    with CapturedOutput(lambda stream, text: sent.append(text)):
        kept = sys.stdout
        print("inside")
    kept.write("outside\n")
    assert (sent, capsys.readouterr().out) == (["inside\n"], "outside\n")


def test_work_that_was_asked_for_anywhere_in_the_work_is_done() -> None:
    done: list[int] = []

    def work() -> None:
        done.append(len(done))
        if len(done) < 3:
            pump.run()
            assert done[-1] == len(done) - 1, "it is not done in the middle of itself"

    pump = Pump(work)
    pump.run()
    assert done == [0, 1, 2]


def test_work_that_raises_can_be_asked_for_again() -> None:
    done: list[int] = []

    def work() -> None:
        done.append(1)
        if len(done) == 1:
            raise ValueError

    pump = Pump(work)
    with pytest.raises(ValueError):
        pump.run()
    pump.run()
    assert len(done) == 2


def test_a_record_that_comes_in_the_middle_of_another_one_follows_it() -> None:
    said: list[bytes] = []

    def write(reply: bytes) -> None:
        if reply in (b"1", b"3"):
            answers.write(bytes([reply[0] + 1]))
            assert said[-1:] != [b"2"]
        said.append(reply)

    answers = OrderedReplies(write)
    answers.write(b"1")
    answer = answers.reserve()
    answers.write(b"3")
    answer.stored(None)
    assert said == [b"1", b"2"]
    answer.complete(b"stored", lambda error: b"error")
    answers.write(b"5")
    assert said == [b"1", b"2", b"stored", b"3", b"4", b"5"]


@contextmanager
def forked(run: Callable[[], object]) -> Iterator[int]:
    """A forked process, which must end with code 0."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    yield pid
    assert os.waitpid(pid, 0)[1] == 0


def reply(kind: int, payload: bytes) -> bytes:
    return REPLY.pack(kind, 0, len(payload), 7, *[0] * 8) + payload


def test_replies_of_forked_processes_are_never_in_the_middle_of_others() -> None:
    reader, writer = os.pipe()
    turns = os.memfd_create("turns")
    answers = OrderedReplies(ResultPipe(writer, turns).write)
    count, long = 200, 40_000

    def child(letter: bytes) -> None:
        for _ in range(count):
            answers.write(reply(OUTPUT, letter * TEXT_LIMIT))

    events: list[Any] = []

    def read() -> None:
        replies = ReplyReader()
        while data := os.read(reader, 65536):
            events.extend(replies.feed(data))

    reading = threading.Thread(target=read)
    reading.start()
    with forked(lambda: child(b"a")), forked(lambda: child(b"b")):
        for _ in range(count):
            answers.write(reply(RESULT, b"r" * long))
    os.close(writer)
    reading.join()
    os.close(reader)
    os.close(turns)
    texts = [event.text for event in events if isinstance(event, OutputWritten)]
    results = [payload for event in events if isinstance(event, RunsEnded) for payload in event.payloads]
    assert sorted(texts) == [b"a" * TEXT_LIMIT] * count + [b"b" * TEXT_LIMIT] * count
    assert results == [b"r" * long] * count


def test_a_fork_prints_its_own_lines_and_not_those_its_parent_has_begun() -> None:
    reader, writer = os.pipe()
    sent: list[str] = []
    held, let_go = threading.Event(), threading.Event()

    def send(stream: int, text: str) -> None:
        sent.append(text)
        if text == "held\n":
            held.set()
            let_go.wait(30)
        os.write(writer, text.encode())

    with CapturedOutput(send):
        holder = threading.Thread(target=print, args=("held",))
        holder.start()
        held.wait(30)
        sys.stdout.write("begun ")
        with forked(lambda: print("child")):
            pass
        let_go.set()
        holder.join()
        print("parent")
    os.close(writer)
    with open(reader, "rb") as file:
        assert file.read() == b"child\nheld\nbegun parent\n"
