"""How a server process starts, is told to end, and ends (Linux).

Signals. A program's entry point calls `main_guard` before any slow import. From then until the event loop is made,
SIGINT and SIGTERM raise SystemExit(0), so that a signal during imports, name look-ups or binds unwinds the program
without a traceback. An event loop that is partly made cannot be unwound without one: from `hold_signals` on the first
signal is only recorded. The main coroutine begins with `terminate_on_signals`: from then on the first signal calls
`stop`; if one was recorded before, or swallowed by a library, `stop` is called at once. After the main coroutine a
first signal is only recorded, and after the main function a signal ends the process immediately. A second signal ends
the process immediately, at any time, unless the program has asked to hear of it: then the third one does. SIGHUP,
unless nohup has it ignored, is SIGTERM, and SIGUSR1, by which a scheduler is asked for a dump, ends no other program.
The program that starts this one may have blocked these signals, which is inherited: `main_guard` unblocks them, and
SIGCHLD, which tells a template of the ends of workers.

Limits. Before the interpreter reaches the entry point SIGTERM kills the process and SIGINT may print a traceback. A
signal just before a blocking system call is noticed when the call returns, so calls before the loop runs have timeouts.
Children forked after `main_guard` inherit the handlers and set their own.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from scaler_io.service.standard_output import finish_output, is_unread

# asyncio, ctypes, logging and scaler_protocol are imported where they are used: signals have no handler until the first
# imports of a program are done.
if TYPE_CHECKING:
    import asyncio

if sys.platform != "linux":
    raise ImportError("servers of Scaler run on Linux only")

_UNREAD: Final = 128 + signal.SIGPIPE
"""The exit code of a program whose output is read no further, as shells know it."""
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_HEARD: Final = (*STOP_SIGNALS, signal.SIGCHLD)
# /usr/include/linux/prctl.h
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_CHILD_SUBREAPER: Final = 36
# The same number on every architecture that Python runs on.
_SYS_PIDFD_OPEN: Final = 434

_received: Final[list[int]] = []
"""The stop signals that this process has received."""


def catch_early_signals() -> None:
    """From now on SIGINT and SIGTERM raise SystemExit(0) in the main thread; a second one ends the process.

    One that came while it was blocked counts as well. SIGHUP is SIGTERM, unless it is ignored; SIGUSR1 does nothing.
    """
    sys.unraisablehook = _forget_swallowed
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup ignores it
        signal.signal(signal.SIGHUP, lambda number, frame: signal.raise_signal(signal.SIGTERM))
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, lambda number, frame: None)
    for number in STOP_SIGNALS:
        signal.signal(number, _on_early_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)


def _forget_swallowed(unraisable: sys.UnraisableHookArgs) -> None:
    """Do not report a SystemExit that a finalizer swallows: the signal is recorded."""
    if not (_received and unraisable.exc_type is SystemExit):
        sys.__unraisablehook__(unraisable)


def _on_early_signal(number: int, frame: FrameType | None) -> None:
    _count(number)
    raise SystemExit(0)


def end_if_told() -> None:
    """Raise SystemExit(0) if a stop signal has come: a library that was being imported may have swallowed the first."""
    if _received:
        raise SystemExit(0)


def hold_signals() -> None:
    """If early signals are caught: from now on record the first signal, until `terminate_on_signals` finds it."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is _on_early_signal:
            signal.signal(number, _on_held_signal)


def _on_held_signal(number: int, frame: FrameType | None) -> None:
    _count(number)


def _count(number: int, at_once: Callable[[], None] | None = None) -> None:
    if _received:
        try:
            if at_once is not None:
                at_once()
        finally:
            os._exit(128 + number)
    _received.append(number)


def terminate_on_signals(
    loop: asyncio.AbstractEventLoop,
    stop: Callable[[], None],
    on_terminate: Callable[[], None] | None = None,
    at_once: Callable[[], None] | None = None,
    again: Callable[[], None] | None = None,
) -> None:
    """The first SIGINT or SIGTERM calls `stop` on the loop; a second one ends the process with 128 + its number.

    Call this first in the main coroutine. If a signal came earlier, `stop` is called at once. With `on_terminate`, a
    first SIGTERM calls that instead. With `again`, a second signal calls that on the loop, and a third one ends the
    process. The signal that ends it calls `at_once` before, whatever the loop does then.
    """

    def stop_soon(number: int) -> None:
        # The loop's own handler, which `signal.signal` below replaces, does not record the signal.
        if not _received:
            _received.append(number)
        if number == signal.SIGTERM and on_terminate is not None:
            on_terminate()
        else:
            stop()
        if again is not None and len(_received) > 1:
            again()

    def count(number: int, frame: FrameType | None) -> None:
        if again is not None and len(_received) == 1:
            _received.append(number)
        else:
            _count(number, at_once)

    for number in STOP_SIGNALS:
        # The loop's handler wakes the loop from any thread; ours runs even while a callback is stuck.
        loop.add_signal_handler(number, stop_soon, number)
        signal.signal(number, count)
    if _received:
        loop.call_soon(stop)


def record_signals(loop: asyncio.AbstractEventLoop) -> None:
    """Call this when the main coroutine has ended: a first signal is only recorded, a second one ends the process.

    The loop, which is closed next, would restore Python's own handlers.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    for number in STOP_SIGNALS:
        if loop.remove_signal_handler(number):
            signal.signal(number, _on_held_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def ending(
    parent_pid: int | None,
    on_terminate: Callable[[], None] | None = None,
    at_once: Callable[[], None] | None = None,
    again: Callable[[], None] | None = None,
) -> asyncio.Event:
    """An event for the main coroutine to wait for: the first SIGINT or SIGTERM, or the end of process `parent_pid`.

    With `on_terminate` a first SIGTERM calls that, and does not set the event. A second signal calls `at_once` and ends
    this process; with `again` it calls that on the loop, and a third one ends this process. Raises SystemExit(0) if the
    parent process has ended already.
    """
    import asyncio

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    terminate_on_signals(loop, stop.set, on_terminate, at_once, again)
    if parent_pid is not None:
        end_with(parent_pid, loop, stop.set)
    return stop


def end_with(pid: int, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Call `stop` on the loop when process `pid` has ended; raises SystemExit(0) if it already has.

    If that is the parent, this process is continued then, in case it was stopped (SIGSTOP).
    """
    continue_after_parent()
    try:
        descriptor = _pidfd_open(pid)
    except ProcessLookupError:
        raise SystemExit(0) from None

    def ended() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        stop()

    loop.add_reader(descriptor, ended)


def _pidfd_open(pid: int) -> int:
    """os.pidfd_open, which is missing in Pythons built with old kernel headers."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return _checked(_libc().syscall(_SYS_PIDFD_OPEN, pid, 0))


def open_standard_streams() -> None:
    """Open /dev/null in place of a closed standard input, output or error.

    Otherwise a file or socket of ours would get its number and receive what this process or a task prints.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # This is now the lowest free number, so os.open returns it.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            stream = os.fdopen(number, mode, encoding="utf-8", closefd=False)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def main_guard(program: str, function: Callable[[], int | None]) -> int:
    """Run a program's main function and return its exit code; expected errors are one line on stderr.

    ValueError is a usage error, exit code 2. OSError and ScalerError, such as ListenError, are exit code 1. The
    traceback of these is logged at level DEBUG. KeyboardInterrupt is 130, and output that nobody reads is 141, both
    silently. Any other exception is a bug and is raised. `function` does the program's slow imports.
    """
    code = 1
    try:
        open_standard_streams()
        catch_early_signals()
        _require_directory()
        code = function() or 0
        finish_output()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        raise
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        if _received and signal.getsignal(signal.SIGTERM) is _on_early_signal:
            # Interrupted imports may turn our SystemExit into another exception, such as TypeError.
            code = 0
            raise SystemExit(0) from None
        exit_code = _exit_code(error)
        if exit_code is None:
            raise
        if is_unread(error):
            code = _UNREAD
        else:
            code = exit_code
            _report(program, error)
    finally:
        # From here on a signal ends the process.
        for number in STOP_SIGNALS:
            signal.signal(number, lambda number, frame: os._exit(code))
    if "threading" in sys.modules and any(thread.daemon for thread in sys.modules["threading"].enumerate()):
        end_process(code)
    return code


def end_process(code: int) -> NoReturn:
    """End the process without taking the interpreter down, which a fork has in common with the process before it.

    Daemon threads, too, may be in foreign code, such as a provider's call that hangs: what such a thread does while the
    interpreter is taken down can abort the process (https://docs.python.org/3/c-api/init.html#c.Py_FinalizeEx).
    """
    import contextlib
    import logging

    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # it is closed, or nobody reads it
            stream.flush()
    os._exit(code)


def _require_directory() -> None:
    """Raise OSError if the current directory was deleted: a library that is imported later would abort the process."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise OSError("the current directory does not exist any more: change to another one") from None


def _exit_code(error: Exception) -> int | None:
    if isinstance(error, ValueError):
        return 2
    if isinstance(error, OSError):  # it may say that no file can be opened, not even a module
        return 1
    from scaler_protocol.errors import ScalerError

    return 1 if isinstance(error, ScalerError) else None


def _report(program: str, error: Exception) -> None:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    try:
        import logging

        from scaler_io.service.options import one_line
    except OSError:
        print(f"{program}: {text}", file=sys.stderr)
        return
    print(f"{program}: {one_line(text) or type(error).__name__}", file=sys.stderr)
    logging.getLogger("scaler").debug("%s ends because of", program, exc_info=error)


def die_with_parent(parent: int) -> None:
    """Have the kernel send SIGKILL to this process when the thread that forked it ends, at once if it has ended.

    `parent` is the parent's process id, taken before the fork. The parent must fork in its main thread, otherwise that
    thread may end before the process. Children do not inherit the setting; exec of a set-uid program clears it.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def continue_after_parent() -> None:
    """Have the kernel continue this process, if it is stopped, when the thread that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def keep_memory_secret() -> None:
    """Have no core file of this process written, and no other process of this user attach to it: it holds keys.

    Processes that it forks afterwards inherit this, programs that it starts only that they write no core file.
    """
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _prctl(_PR_SET_DUMPABLE, 0)


def become_subreaper() -> None:
    """Become the parent of orphaned descendants, which this process must then reap."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    import ctypes

    # prctl is variadic and reads four longs.
    zero = ctypes.c_ulong(0)
    _checked(_libc().prctl(option, ctypes.c_ulong(value), zero, zero, zero))


def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    import ctypes

    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def give_back_memory() -> None:
    """Have the C library return free memory to the system, if it can."""
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident_bytes(pid: int) -> int:
    """The physical memory of a process in bytes, shared pages included; raises ProcessLookupError if it has ended."""
    return int(_read_process_file(pid, "statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """User and system CPU time of all threads of a process in seconds; raises ProcessLookupError if it has ended."""
    # The second field is the program's name in parentheses, which may hold anything.
    fields = _read_process_file(pid, "stat").rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read_process_file(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise ProcessLookupError(f"process {pid} has ended") from None
