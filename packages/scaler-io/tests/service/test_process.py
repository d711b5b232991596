"""Lifecycle: signals, watched processes, exit codes, memory; in real processes, waiting for events only.

The programs under test wait for a signal in a busy loop: one right before signal.pause() would be lost to it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="servers run on Linux only")

if sys.platform == "linux":
    from scaler_io.service.process import cpu_seconds, resident_bytes

DEADLINE = 30


class Program:
    """A Python program under test; every wait has a deadline."""

    def __init__(self, text: str, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(text), *words],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.input: IO[bytes] = self.process.stdin
        self.output: IO[bytes] = self.process.stdout
        self.error: IO[bytes] = self.process.stderr

    def line(self) -> str:
        """The next line of its output; empty at the end."""
        readable, _, _ = select.select([self.output], [], [], DEADLINE)
        assert readable, "no line in time"
        return self.output.readline().decode().rstrip("\n")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def ends(self, code: int, output: str = "", error: str = "") -> None:
        """Assert how it ends and what it still says."""
        said, complained = self.process.communicate(timeout=DEADLINE)
        assert (self.process.returncode, said.decode(), complained.decode()) == (code, output, error)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.input, self.output, self.error):
            stream.close()


Start = Callable[..., Program]


@pytest.fixture
def start() -> Iterator[Start]:
    programs: list[Program] = []

    def started(text: str, *words: str) -> Program:
        programs.append(Program(text, *words))
        return programs[-1]

    yield started
    for program in programs:
        program.close()


both_signals = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
both_loops = pytest.mark.parametrize("kind", ["builtin", "uvloop"])

STARTING_UP = """
    import sys
    from scaler_io.service.process import main_guard
    def main():
        try:
            print("starting", flush=True)
            while True:
                pass
        finally:
            print("cleaned up")
    sys.exit(main_guard("program", main))
"""


@both_signals
def test_signal_during_start_up_unwinds_silently(number: int, start: Start) -> None:
    program = start(STARTING_UP)
    assert program.line() == "starting"
    program.signal(number)
    program.ends(0, "cleaned up\n")


def test_no_free_descriptor_during_start_up_is_one_line(start: Start) -> None:
    program = start("""
        import os, resource, sys
        from scaler_io.service.process import main_guard
        def main():
            used = max(map(int, os.listdir("/proc/self/fd"))) + 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (used - 1, used))
            open("options.py")
        sys.exit(main_guard("program", main))
    """)
    program.ends(1, error="program: options.py: Too many open files\n")


@pytest.mark.parametrize("options", [[], ["-u"]], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("lines", [1, 100_000])
def test_output_that_nobody_reads_ends_a_program_silently(lines: int, options: list[str]) -> None:
    text = f"""
import sys
from scaler_io.service.process import main_guard
def main():
    sys.stdin.readline()
    for line in range({lines}):
        print(line)
sys.exit(main_guard("program", main))
"""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [sys.executable, *options, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment,
    ) as program:  # fmt: skip
        assert program.stdout is not None
        program.stdout.close()
        assert program.communicate(b"\n", timeout=60)[1] == b""
    assert program.returncode == 128 + signal.SIGPIPE


@contextmanager
def hangup(answer: signal.Handlers) -> Iterator[None]:
    """What is started meanwhile inherits this answer to SIGHUP; the tests themselves may run under nohup."""
    before = signal.signal(signal.SIGHUP, answer)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def test_hangup_is_termination(start: Start) -> None:
    with hangup(signal.SIG_DFL):
        program = start(STARTING_UP)
    assert program.line() == "starting"
    program.signal(signal.SIGHUP)
    program.ends(0, "cleaned up\n")


@both_loops
def test_hangup_stops_a_server(kind: str, start: Start) -> None:
    with hangup(signal.SIG_DFL):
        server = start(SERVING, kind)
    assert server.line() == "serving"
    server.signal(signal.SIGUSR1)
    server.signal(signal.SIGHUP)
    server.ends(0, "stopping\n")


def test_hangup_stays_ignored_under_nohup(start: Start) -> None:
    with hangup(signal.SIG_IGN):
        program = start(STARTING_UP)
    assert program.line() == "starting"
    program.signal(signal.SIGHUP)
    program.signal(signal.SIGTERM)
    program.ends(0, "cleaned up\n")


@both_signals
def test_signals_that_the_parent_has_blocked_are_heard(number: int, start: Start) -> None:
    heard = {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    try:
        program = start(STARTING_UP)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert program.line() == "starting"
    status = Path(f"/proc/{program.process.pid}/status").read_text("utf-8")
    blocked = int(status.split("SigBlk:")[1].split()[0], 16)
    assert not any(blocked >> (each - 1) & 1 for each in heard)
    program.signal(number)
    program.ends(0, "cleaned up\n")


@both_signals
def test_signal_that_became_another_error_during_start_up_unwinds_silently(number: int, start: Start) -> None:
    program = start("""
        from scaler_io.service.process import main_guard
        def main():
            try:
                print("starting", flush=True)
                while True:
                    pass
            except SystemExit:
                raise TypeError("expected a message argument")
        main_guard("program", main)
    """)
    assert program.line() == "starting"
    program.signal(number)
    program.ends(0)


@both_signals
def test_second_signal_during_start_up_is_immediate(number: int, start: Start) -> None:
    program = start("""
        from scaler_io.service.process import main_guard
        def main():
            try:
                print("starting", flush=True)
                while True:
                    pass
            except BaseException as error:
                print(type(error).__name__, flush=True)
                while True:
                    pass
        main_guard("program", main)
    """)
    assert program.line() == "starting"
    program.signal(number)
    assert program.line() == "SystemExit"
    program.signal(number)
    program.ends(128 + number)


@both_signals
def test_who_hears_of_a_second_signal_ends_with_the_third(number: int, start: Start) -> None:
    program = start("""
        import asyncio
        from scaler_io.service.event_loops import run
        from scaler_io.service.process import ending, main_guard
        async def serve():
            again = asyncio.Event()
            stop = ending(None, again=again.set)
            for name, event in (("ready", None), ("first", stop), ("second", again)):
                if event is not None:
                    await event.wait()
                print(name, flush=True)
            await asyncio.Event().wait()
        main_guard("program", lambda: run(serve))
    """)
    for name in ("ready", "first", "second"):
        assert program.line() == name
        program.signal(number)
    program.ends(128 + number)


@both_loops
def test_signal_that_was_swallowed_during_start_up_stops_the_loop(kind: str, start: Start) -> None:
    program = start(
        """
        import asyncio, sys
        from scaler_io.service.event_loops import run
        from scaler_io.service.process import main_guard, terminate_on_signals
        async def serve():
            stopped = asyncio.Event()
            terminate_on_signals(asyncio.get_running_loop(), stopped.set)
            await stopped.wait()
            print("stopped")
        def main():
            try:
                print("starting", flush=True)
                while True:
                    pass
            except BaseException:
                run(serve, sys.argv[1])
        sys.exit(main_guard("program", main))
        """,
        kind,
    )
    assert program.line() == "starting"
    program.signal(signal.SIGTERM)
    program.ends(0, "stopped\n")


@both_signals
def test_signal_while_the_loop_is_made_stops_it(number: int, start: Start) -> None:
    program = start(
        """
        import asyncio, os, sys
        from scaler_io.service.event_loops import run
        from scaler_io.service.process import main_guard, terminate_on_signals
        make = asyncio.base_events.BaseEventLoop.__init__
        def make_slowly(loop):
            os.kill(os.getpid(), int(sys.argv[1]))
            make(loop)
        asyncio.base_events.BaseEventLoop.__init__ = make_slowly
        async def serve():
            stopped = asyncio.Event()
            terminate_on_signals(asyncio.get_running_loop(), stopped.set)
            await stopped.wait()
            print("stopped")
        sys.exit(main_guard("program", lambda: run(serve)))
        """,
        str(int(number)),
    )
    program.ends(0, "stopped\n")


@both_signals
def test_signal_in_a_finalizer_is_silent_and_stops_the_loop(number: int, start: Start) -> None:
    program = start(
        """
        import asyncio, os, sys
        from scaler_io.service.event_loops import run
        from scaler_io.service.process import main_guard, terminate_on_signals
        class Finalized:
            def __del__(self):
                os.kill(os.getpid(), int(sys.argv[1]))
        async def serve():
            stopped = asyncio.Event()
            terminate_on_signals(asyncio.get_running_loop(), stopped.set)
            await stopped.wait()
            print("stopped")
        def main():
            Finalized()
            run(serve)
        sys.exit(main_guard("program", main))
        """,
        str(int(number)),
    )
    program.ends(0, "stopped\n")


SERVING = """
    import asyncio, sys
    from scaler_io.service.event_loops import run
    from scaler_io.service.process import main_guard, terminate_on_signals
    async def serve():
        stopped = asyncio.Event()
        def stop():
            print("stopping", flush=True)
            stopped.set()
        terminate_on_signals(asyncio.get_running_loop(), stop)
        print("serving", flush=True)
        await stopped.wait()
        if len(sys.argv) > 2:
            await asyncio.Event().wait()
    sys.exit(main_guard("program", lambda: run(serve, sys.argv[1])))
"""


@both_loops
@both_signals
def test_signal_stops_a_server(number: int, kind: str, start: Start) -> None:
    program = start(SERVING, kind)
    assert program.line() == "serving"
    program.signal(number)
    program.ends(0, "stopping\n")


@both_loops
@both_signals
def test_second_signal_is_immediate(number: int, kind: str, start: Start) -> None:
    program = start(SERVING, kind, "slowly")
    assert program.line() == "serving"
    program.signal(signal.SIGTERM)
    assert program.line() == "stopping"
    program.signal(number)
    program.ends(128 + number)


@both_loops
def test_second_signal_ends_a_stuck_loop(kind: str, start: Start) -> None:
    program = start(
        """
        import asyncio, sys
        from scaler_io.service.event_loops import run
        from scaler_io.service.process import main_guard, terminate_on_signals
        async def serve():
            terminate_on_signals(asyncio.get_running_loop(), lambda: None)
            print("stuck", flush=True)
            while True:
                pass
        main_guard("program", lambda: run(serve, sys.argv[1]))
        """,
        kind,
    )
    assert program.line() == "stuck"
    program.signal(signal.SIGINT)
    program.signal(signal.SIGTERM)
    program.ends(128 + signal.SIGTERM)


@both_loops
def test_signal_that_another_thread_received_wakes_the_loop(kind: str, start: Start) -> None:
    program = start(
        """
        import asyncio, signal, sys, threading
        from scaler_io.service.event_loops import run
        from scaler_io.service.process import main_guard, terminate_on_signals
        def receive():
            sys.stdin.readline()
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        async def serve():
            stopped = asyncio.Event()
            terminate_on_signals(asyncio.get_running_loop(), stopped.set)
            threading.Thread(target=receive).start()
            print("idle", flush=True)
            await stopped.wait()
        sys.exit(main_guard("program", lambda: run(serve, sys.argv[1])))
        """,
        kind,
    )
    assert program.line() == "idle"
    program.input.write(b"go\n")
    program.ends(0)


@both_loops
@both_signals
def test_signal_while_the_loop_is_closed_keeps_the_exit_code(number: int, kind: str, start: Start) -> None:
    program = start(
        """
        import asyncio, os, sys
        from scaler_io.service.event_loops import run
        from scaler_io.service.process import main_guard, terminate_on_signals
        class Finalized:
            def __del__(self):
                os.kill(os.getpid(), int(sys.argv[1]))
        async def serve():
            terminate_on_signals(asyncio.get_running_loop(), lambda: None)
            return 3
        def main():
            code = run(serve, sys.argv[2])
            Finalized()
            print("left", flush=True)
            return code
        sys.exit(main_guard("program", main))
        """,
        str(int(number)),
        kind,
    )
    program.ends(3, "left\n")


@both_signals
def test_signal_after_the_main_function_keeps_the_exit_code(number: int, start: Start) -> None:
    program = start("""
        import asyncio
        from scaler_io.service.event_loops import run
        from scaler_io.service.process import main_guard, terminate_on_signals
        async def serve():
            terminate_on_signals(asyncio.get_running_loop(), lambda: None)
            return 3
        main_guard("program", lambda: run(serve))
        print("leaving", flush=True)
        while True:
            pass
    """)
    assert program.line() == "leaving"
    program.signal(number)
    program.ends(3)


FOLLOWING = """
    import asyncio, os, sys
    from scaler_io.service.event_loops import run
    from scaler_io.service.process import end_with, main_guard
    if sys.argv[3:]:
        del os.pidfd_open
    async def serve():
        ended = asyncio.Event()
        end_with(int(sys.argv[2]), asyncio.get_running_loop(), ended.set)
        print("watching", flush=True)
        await ended.wait()
        print("ended", flush=True)
    sys.exit(main_guard("program", lambda: run(serve, sys.argv[1])))
"""


@both_loops
@pytest.mark.parametrize("more", [[], ["without os.pidfd_open"]])
def test_ends_with_another_process(kind: str, more: list[str], start: Start) -> None:
    other = start("input()")
    program = start(FOLLOWING, kind, str(other.process.pid), *more)
    assert program.line() == "watching"
    other.signal(signal.SIGKILL)
    program.ends(0, "ended\n")


def test_ends_with_its_parent_also_while_it_is_stopped(start: Start) -> None:
    owner = start(
        """
        import os, subprocess, sys
        service = subprocess.Popen([sys.executable, "-c", sys.argv[1], "builtin", str(os.getpid())])
        print(service.pid, flush=True)
        service.wait()
    """,
        textwrap.dedent(FOLLOWING),
    )
    service = int(owner.line())
    assert owner.line() == "watching"
    os.kill(service, signal.SIGSTOP)
    owner.signal(signal.SIGKILL)
    assert owner.line() == "ended"


@both_loops
@pytest.mark.parametrize("more", [[], ["without os.pidfd_open"]])
def test_ends_at_once_when_the_other_process_is_gone(kind: str, more: list[str], start: Start) -> None:
    other = start("")
    other.ends(0)
    start(FOLLOWING, kind, str(other.process.pid), *more).ends(0)


@pytest.mark.parametrize(
    ("statement", "code", "error"),
    [
        ("return None", 0, ""),
        ("return 4", 4, ""),
        ("raise SystemExit(5)", 5, ""),
        ("raise KeyboardInterrupt", 130, ""),
        ("raise ValueError('bad\\n  address')", 2, "program: bad; address\n"),
        ("raise OSError('cannot listen on x: in use')", 1, "program: cannot listen on x: in use\n"),
        ("open('/no/such/file')", 1, "program: /no/such/file: No such file or directory\n"),
        ("raise OSError(98, 'Address already in use')", 1, "program: Address already in use\n"),
        ("raise TimeoutError", 1, "program: TimeoutError\n"),
        ("raise errors.SchedulerLostError()", 1, "program: The scheduler did not come back in time.\n"),
        ("raise errors.NoWorkerError('none')", 1, "program: none\n"),
        ("raise errors.AddressError('no address')", 2, "program: no address\n"),
    ],
)
def test_exit_codes(statement: str, code: int, error: str, start: Start) -> None:
    program = start(f"""
        import sys
        from scaler_io.service.process import main_guard
        from scaler_protocol import errors
        def main():
            {statement}
        sys.exit(main_guard("program", main))
    """)
    program.ends(code, "", error)


def test_bug_keeps_its_traceback(start: Start) -> None:
    program = start("from scaler_io.service.process import main_guard\nmain_guard('program', lambda: 1 / 0)")
    _, error = program.process.communicate(timeout=DEADLINE)
    assert program.process.returncode == 1
    assert error.startswith(b"Traceback")
    assert error.endswith(b"ZeroDivisionError: division by zero\n")


def test_foreseen_errors_log_their_traceback_for_debugging(start: Start) -> None:
    program = start("""
        from scaler_io.service import logs
        from scaler_io.service.process import main_guard
        def main():
            logs.configure(["-"], "DEBUG")
            raise ValueError("odd")
        main_guard("program", main)
    """)
    output, error = program.process.communicate(timeout=DEADLINE)
    assert error == b"program: odd\n"
    assert output.endswith(b"ValueError: odd\n")


def test_import_is_light(start: Start) -> None:
    program = start("""
        import sys
        before = set(sys.modules)
        import scaler_io.service.process
        heavy = {"argparse", "asyncio", "ctypes", "logging", "scaler_protocol", "zmq"}
        print(sorted(heavy & (set(sys.modules) - before)))
    """)
    program.ends(0, "[]\n")


def test_other_modules_do_not_need_it(start: Start) -> None:
    program = start("""
        import sys
        import scaler_io.service.cli, scaler_io.service.event_loops, scaler_io.service.logs
        assert "scaler_io.service.process" not in sys.modules
        sys.platform = "win32"
        try:
            import scaler_io.service.process
        except ImportError as error:
            print(error)
    """)
    program.ends(0, "servers of Scaler run on Linux only\n")


def test_dies_with_its_parent(start: Start) -> None:
    program = start("""
        import os, signal
        from scaler_io.service.process import die_with_parent
        parent = os.getpid()
        if os.fork() == 0:
            die_with_parent(parent)
            print("child", flush=True)
        signal.pause()
    """)
    assert program.line() == "child"
    program.signal(signal.SIGKILL)
    assert program.line() == "", "the end of the pipe that parent and child share"
    program.ends(-signal.SIGKILL)


def test_dies_at_once_when_the_parent_is_gone_already(start: Start) -> None:
    program = start("from scaler_io.service.process import die_with_parent\ndie_with_parent(1 << 30)\nprint('alive')")
    program.ends(-signal.SIGKILL)


def test_subreaper_inherits_orphans(start: Start) -> None:
    program = start("""
        import os
        from scaler_io.service.process import become_subreaper
        become_subreaper()
        child = os.fork()
        if child == 0:
            os._exit(0 if os.fork() else 7)
        assert os.waitpid(child, 0)[1] == 0
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    """)
    program.ends(0, "7\n")


def test_memory_and_processor_time_of_a_process(start: Start) -> None:
    program = start("""
        import sys
        open("/proc/self/comm", "w", encoding="ascii").write("a) R 1 2")
        print("small", flush=True)
        sys.stdin.readline()
        held = b"x" * 50_000_000
        for _ in range(3_000_000):
            pass
        print("big", flush=True)
        sys.stdin.readline()
    """)
    pid = program.process.pid
    assert program.line() == "small"
    resident, seconds = resident_bytes(pid), cpu_seconds(pid)
    program.input.write(b"\n")
    assert program.line() == "big"
    assert resident_bytes(pid) - resident >= 45_000_000
    assert cpu_seconds(pid) > seconds


def test_processor_time_of_this_process() -> None:
    before = os.times()
    seconds = cpu_seconds(os.getpid())
    after = os.times()
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert before.user + before.system - tick <= seconds <= after.user + after.system + 2 * tick


@pytest.mark.parametrize("figure", ["resident", "seconds"])
def test_process_that_is_gone(figure: str, start: Start) -> None:
    program = start("")
    program.ends(0)
    read = {"resident": resident_bytes, "seconds": cpu_seconds}[figure]
    with pytest.raises(ProcessLookupError):
        read(program.process.pid)


def test_zombie_uses_no_memory(start: Start) -> None:
    program = start("")
    os.waitid(os.P_PID, program.process.pid, os.WEXITED | os.WNOWAIT)
    assert resident_bytes(program.process.pid) == 0


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_standard_streams_that_are_closed_are_devnull(closed: tuple[int, ...]) -> None:
    text = """
        import os, sys
        from scaler_io.service.process import main_guard

        def main():
            streams = sys.stdin, sys.stdout, sys.stderr
            assert [stream.fileno() for stream in streams] == [0, 1, 2]
            print("printed", flush=True)
            assert all(os.get_inheritable(number) for number in range(3))
            told, closed = int(sys.argv[1]), map(int, sys.argv[2:])
            names = {os.readlink(f"/proc/self/fd/{number}") for number in closed}
            os.write(told, " ".join(names).encode())

        sys.exit(main_guard("program", main))
        """
    read, write = os.pipe()
    words = [str(write), *map(str, closed)]
    redirections = " ".join(f"{number}>&-" for number in closed)
    command = ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-c", textwrap.dedent(text), *words]
    ended = subprocess.run(command, pass_fds=[write], stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE)
    os.close(write)
    with open(read, "rb") as told:
        assert (ended.returncode, told.read()) == (0, b"/dev/null"), ended.stderr


def test_threads_that_hang_do_not_meet_the_end_of_the_interpreter(start: Start) -> None:
    """What such a thread does meanwhile can abort the process."""
    program = start(
        """
        import atexit, sys, threading, time
        from scaler_io.service.process import main_guard

        def run():
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
            atexit.register(print, "the interpreter is taken down")
            print("done", end="")
            return 3

        sys.exit(main_guard("test", run))
        """
    )
    program.ends(3, "done")


def test_memory_that_is_secret_is_neither_dumped_nor_read() -> None:
    script = (
        "import ctypes, resource; from scaler_io.service.process import keep_memory_secret; keep_memory_secret();"
        "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), resource.getrlimit(resource.RLIMIT_CORE))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "0 (0, 0)\n"
