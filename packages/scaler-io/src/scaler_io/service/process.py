"""How a server process starts, is told to end, and ends (Linux).

Theory. A program's entry point calls `main_guard` before it imports anything heavy. From there until its event loop
is made, SIGINT and SIGTERM raise SystemExit(0), so that a signal in the middle of imports, name look-ups or binds
unwinds what exists and leaves no traceback. A loop that is half made could not be unwound in silence: from
`hold_signals` on the first one only counts. The main coroutine begins with `terminate_on_signals`, which turns the
first signal into a call of `stop`; an earlier one that was held, or that some library swallowed, stops it at once.
After the main function only the way out is left, and a signal takes it directly. The second signal ends the process at
any moment.

What this cannot do: before the interpreter reaches the entry point SIGTERM kills and SIGINT may leave a traceback; and
a signal in the instant before a blocking system call is noticed when that returns, so calls before the loop runs have
timeouts. Children forked after `main_guard` inherit the handlers and set their own.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

# asyncio, ctypes, logging and scaler_protocol are imported where they are used: the first lines of a program stand
# between a signal and its handler.
if TYPE_CHECKING:
    import asyncio

if sys.platform != "linux":
    raise ImportError("servers of Scaler run on Linux only")

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# /usr/include/linux/prctl.h
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
# The same number on every architecture that Python runs on.
_SYS_PIDFD_OPEN: Final = 434

_received: Final[list[int]] = []
"""The stop signals of this process so far."""


def catch_early_signals() -> None:
    """From now on SIGINT and SIGTERM raise SystemExit(0) in the main thread, and a second one ends the process."""
    sys.unraisablehook = _forget_swallowed
    for number in STOP_SIGNALS:
        signal.signal(number, _on_early_signal)


def _forget_swallowed(unraisable: sys.UnraisableHookArgs) -> None:
    """A finalizer that a signal interrupts swallows the SystemExit; that the signal came is known all the same."""
    if not (_received and unraisable.exc_type is SystemExit):
        sys.__unraisablehook__(unraisable)


def _on_early_signal(number: int, frame: FrameType | None) -> None:
    _count(number)
    raise SystemExit(0)


def hold_signals() -> None:
    """Where early signals are caught: the first one only counts, until `terminate_on_signals` finds it."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is _on_early_signal:
            signal.signal(number, _on_held_signal)


def _on_held_signal(number: int, frame: FrameType | None) -> None:
    _count(number)


def _count(number: int) -> None:
    if _received:
        os._exit(128 + number)
    _received.append(number)


def terminate_on_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """The first SIGINT or SIGTERM calls `stop` on the loop; a second one ends the process with 128 + its number.

    To be called first thing in the main coroutine. `stop` comes at once where a signal came before.
    """

    def stop_soon(number: int) -> None:
        # Before `signal.signal` below has replaced the loop's own handler, nobody else counted.
        if not _received:
            _received.append(number)
        stop()

    for number in STOP_SIGNALS:
        # The loop's handler wakes it wherever the signal was delivered; ours runs even while a callback is stuck.
        loop.add_signal_handler(number, stop_soon, number)
        signal.signal(number, _on_held_signal)
    if _received:
        loop.call_soon(stop)


def ending(parent_pid: int | None) -> asyncio.Event:
    """An event that the first SIGINT or SIGTERM sets, and the end of that process; for the main coroutine to wait for.

    A second signal ends this process at once. Raises SystemExit(0) where that process has ended already.
    """
    import asyncio

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    terminate_on_signals(loop, stop.set)
    if parent_pid is not None:
        end_with(parent_pid, loop, stop.set)
    return stop


def end_with(pid: int, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Call `stop` on the loop when process `pid` has ended; raises SystemExit(0) where it already has."""
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
    """os.pidfd_open, which Pythons built with old kernel headers lack."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return _checked(_libc().syscall(_SYS_PIDFD_OPEN, pid, 0))


def open_standard_streams() -> None:
    """Have /dev/null stand where standard input, output or error is closed.

    Otherwise a file or socket of ours would get its number, and what is printed, by tasks too, would go there.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            stream = os.fdopen(number, mode, encoding="utf-8", closefd=False)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def main_guard(program: str, function: Callable[[], int | None]) -> int:
    """Run a program's main function and give its exit code; anything foreseen that fails is one line on stderr.

    ValueError is 2: usage. OSError and ScalerError are 1: circumstances, like a port in use. KeyboardInterrupt is 130,
    silently. Any other exception is a bug, passes through and keeps its traceback. The tracebacks of the former are
    logged at level DEBUG. `function` does the program's heavy imports.
    """
    code = 1
    try:
        open_standard_streams()
        catch_early_signals()
        code = function() or 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        raise
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        if _received and signal.getsignal(signal.SIGTERM) is _on_early_signal:
            # What became of our SystemExit: an import that fails for a moment makes a TypeError of it.
            code = 0
            raise SystemExit(0) from None
        foreseen = _exit_code(error)
        if foreseen is None:
            raise
        code = foreseen
        _report(program, error)
    finally:
        # The loop restored Python's own handlers; all that is left is the way out.
        for number in STOP_SIGNALS:
            signal.signal(number, lambda number, frame: os._exit(code))
    return code


def _exit_code(error: Exception) -> int | None:
    from scaler_protocol.errors import ScalerError

    if isinstance(error, ValueError):
        return 2
    return 1 if isinstance(error, OSError | ScalerError) else None


def _report(program: str, error: Exception) -> None:
    import logging

    from scaler_io.service.options import one_line

    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    print(f"{program}: {one_line(text) or type(error).__name__}", file=sys.stderr)
    logging.getLogger("scaler").debug("%s ends because of", program, exc_info=error)


def die_with_parent(parent: int) -> None:
    """Have the kernel send SIGKILL to this process when the thread that forked it ends; dies at once if it has.

    `parent` is the parent's process id, taken before the fork. Only a parent whose forking thread is its main thread
    ends when its process does. The setting is lost at exec of a set-uid program and not inherited by children.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def become_subreaper() -> None:
    """Become the parent of every orphan among this process's descendants, to be waited for here."""
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
    """Have the C library return free memory to the system; some cannot."""
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident_bytes(pid: int) -> int:
    """The physical memory that a process uses, shared pages included; ProcessLookupError when it is gone."""
    return int(_read_process_file(pid, "statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """The processor time, user and system, that all threads of a process took; ProcessLookupError when it is gone."""
    # The second field is the program's name in parentheses, which may hold anything.
    fields = _read_process_file(pid, "stat").rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read_process_file(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise ProcessLookupError(f"process {pid} has ended") from None
