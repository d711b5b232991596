"""Dumps: sends the core's dump to operators as JSON, and writes it into a file on SIGUSR1."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from scaler_io.links.hub import Hub
from scaler_protocol.addresses import Address
from scaler_protocol.operations import DumpPart
from scaler_scheduler.core.effects import WriteDump
from scaler_scheduler.monitoring.publisher import StatusSampler

LOGGER = logging.getLogger("scaler")
PART_BYTES = 256 * 1024
FILES_KEPT = 5
"""Dump files of one scheduler's address that are kept in a directory."""


class Dumps:
    """Answers operators and SIGUSR1 on the running loop, which must be that of the main thread, until it is closed.

    Files go to the directory of the first log file, or to the temporary directory if there is none.
    """

    def __init__(self, sampler: StatusSampler, hub: Hub, logging_paths: Sequence[str], address: Address) -> None:
        self._sampler = sampler
        self._hub = hub
        self._directory = directory_of(logging_paths)
        self._prefix = f"scaler-dump-{address.port or Path(address.path).name}-"
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGUSR1, self._begin_file)

    def answer(self, effect: WriteDump) -> None:
        """Send a dump to the operator that has asked for it."""
        text = self._text()
        for start in range(0, len(text), PART_BYTES):
            data = text[start : start + PART_BYTES]
            self._hub.send(effect.to, DumpPart(len(text) - start - len(data), data))

    def _text(self) -> bytes:
        dump = self._sampler.dump()
        dump["scheduler"]["version"] = _version()
        return as_text(dump)

    def _begin_file(self) -> None:
        """Make a dump now, and write it in a thread, since a disk may be slow."""
        self._loop.run_in_executor(None, self._write_file, self._text())

    def _write_file(self, text: bytes) -> None:
        from datetime import datetime  # few schedulers write a dump

        name = f"{self._prefix}{datetime.now():%Y%m%dT%H%M%S.%f}.json"
        path = self._directory / name
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(text)
            remove_oldest(self._directory, self._prefix)
        except OSError as error:
            LOGGER.warning("Scheduler: the dump could not be written: %s: %s", path, error.strerror or error)
        else:
            LOGGER.info("Scheduler: who waits for what is written to %s", path)

    def close(self) -> None:
        """Ignore SIGUSR1 from now on."""
        self._loop.remove_signal_handler(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


@cache
def _version() -> str:
    from importlib.metadata import version  # it takes 3 MB and 20 ms, which a scheduler without dumps need not pay

    return version("scaler-scheduler")


def directory_of(logging_paths: Sequence[str]) -> Path:
    """Where dumps are written: beside the first log that is a regular file, or in the temporary directory."""
    for path in logging_paths:
        if os.path.isfile(path):
            return Path(path).resolve().parent
    return Path(tempfile.gettempdir())


def remove_oldest(directory: Path, prefix: str) -> None:
    """Remove all but the newest FILES_KEPT dumps of this user; the time is a part of their names."""
    mine = [path for path in directory.glob(f"{prefix}*.json") if path.lstat().st_uid == os.getuid()]
    for path in sorted(mine)[:-FILES_KEPT]:
        path.unlink(missing_ok=True)


def as_text(dump: Mapping[str, Mapping[str, Any]]) -> bytes:
    """A dump as JSON with a line for each row, which people and line-oriented programs can read."""
    sections = ",\n".join(f"{json.dumps(name)}: {_section(section)}" for name, section in dump.items())
    return f"{{\n{sections}\n}}\n".encode()


def _section(section: Mapping[str, Any]) -> str:
    if not section.get("rows"):
        return json.dumps(section)
    totals = json.dumps({name: value for name, value in section.items() if name != "rows"})
    rows = ",\n".join(map(json.dumps, section["rows"]))
    return f'{totals[:-1]}, "rows": [\n{rows}\n]}}'
