"""`scaler`: starts the cluster that a TOML file describes, and answers questions about a cluster."""

from __future__ import annotations

import difflib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from scaler_io.service.process import main_guard

PROGRAM: Final = "scaler"
HELP: Final = """\
usage: scaler FILE.toml                          start the cluster that a file describes
       scaler init [FILE.toml]                   write a commented file to start from
       scaler check FILE.toml                    check a file without starting anything
       scaler status SCHEDULER_ADDRESS [--json]  who is there, what waits, what scales, and why
       scaler dump SCHEDULER_ADDRESS [-o FILE]   who waits for what, and why, as JSON
       scaler results SCHEDULER_ADDRESS SESSION  the tasks of a named session and their results; --json, --drop
       scaler wait SCHEDULER_ADDRESS --workers N wait until N workers are connected
       scaler drain SCHEDULER_ADDRESS AGENT ...  have agents finish their tasks and leave; --host, --no-wait
       scaler keys init|add-client|list|revoke   make the keys of a cluster, and say who may connect

example:
  scaler init cluster.toml && scaler cluster.toml"""


def main() -> int:
    """Run the command; returns the exit code."""
    return main_guard(PROGRAM, lambda: run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """Run the command that these words name; raises ValueError for wrong usage."""
    if not words or words[0] in ("-h", "--help"):
        print(HELP, file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] == "--version":
        from scaler_io.service.cli import version_line

        print(version_line(PROGRAM))
        return 0
    commands: Mapping[str, Callable[[Sequence[str]], int]] = {
        "init": _init,
        "check": _check,
        "status": _status,
        "dump": _dump,
        "results": _results,
        "wait": _wait,
        "drain": _drain,
        "keys": _keys,
    }
    if words[0] in ("init", "check") and words[1:2] in (["-h"], ["--help"]):
        return run(words[1:])
    if words[0] in commands:
        return commands[words[0]](words[1:])
    near = difflib.get_close_matches(words[0], commands, n=1)
    if near and not Path(words[0]).exists():
        raise ValueError(f"unknown command {words[0]!r}; did you mean `scaler {near[0]}`?")
    return _start(_one_path(words))


def _one_path(words: Sequence[str]) -> Path:
    if words[:1] in (["--config"], ["-c"]):
        words = words[1:]
    if len(words) != 1 or words[0].startswith("-"):
        raise ValueError("give one TOML file; `scaler -h` shows the commands")
    return Path(words[0])


def _start(path: Path) -> int:
    import asyncio

    from scaler_io.service.process import ending, hold_signals
    from scaler_launch.cluster_file import read_cluster
    from scaler_launch.supervisor import ServiceFailedError, supervise

    cluster = read_cluster(path)

    async def serve() -> int:
        try:
            await supervise(cluster.services, ending(None))
        except ServiceFailedError as failure:
            print(f"scaler: {failure}", file=sys.stderr)
            return failure.code
        return 0

    hold_signals()
    return asyncio.run(serve())


def _init(words: Sequence[str]) -> int:
    from scaler_launch.whole_files import write_whole

    path = _one_path(words or ["cluster.toml"])
    text = Path(__file__).with_name("starter.toml").read_text("utf-8")
    try:
        write_whole(path, text.encode(), replace=False)
    except FileExistsError:
        raise ValueError(f"{path} exists already; name another file") from None
    print(f"{path} is written; start the cluster with: scaler {path}")
    return 0


def _check(words: Sequence[str]) -> int:
    from scaler_launch.cluster_file import read_cluster

    path = _one_path(words)
    cluster = read_cluster(path)
    print(f"{path} is right; it starts: {', '.join(service.name for service in cluster.services)}")
    return 0


def _status(words: Sequence[str]) -> int:
    _end_on_signals()
    from scaler_launch import status

    return status.show(words)


def _dump(words: Sequence[str]) -> int:
    _end_on_signals()
    from scaler_launch import dump

    return dump.show(words)


def _results(words: Sequence[str]) -> int:
    _end_on_signals()
    from scaler_launch import results

    return results.show(words)


def _wait(words: Sequence[str]) -> int:
    _end_on_signals()
    from scaler_launch import status

    return status.wait(words)


def _drain(words: Sequence[str]) -> int:
    _end_on_signals()
    from scaler_launch import drain

    return drain.run(words)


def _keys(words: Sequence[str]) -> int:
    from scaler_launch import keys

    return keys.run(words)


def _end_on_signals() -> None:
    """A signal ends a command that asks and waits, and is no success: `scaler wait … && run` must not go on.

    It raises nothing: foreign code would print and swallow that.
    """
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
